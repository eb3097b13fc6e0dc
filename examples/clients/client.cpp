// A client of hpcdl serve: prints a completion as it comes. Needs Boost.Beast and nlohmann-json, not HPC-DL:
//   g++ -std=c++20 client.cpp -o client -pthread && ./client 127.0.0.1 8080 "Once upon a time"
#include <iostream>
#include <string>
#include <utility>

#include <boost/asio.hpp>
#include <boost/beast/http.hpp>
#include <nlohmann/json.hpp>

int main(int argc, char** argv) {
  namespace asio = boost::asio;
  namespace http = boost::beast::http;
  if (argc != 4) return std::cerr << "usage: client HOST PORT PROMPT\n", 2;
  try {
    asio::io_context io;
    asio::ip::tcp::socket socket(io);
    asio::connect(socket, asio::ip::tcp::resolver(io).resolve(argv[1], argv[2]));

    const nlohmann::json body{{"prompt", argv[3]}, {"max_tokens", 64}, {"stream", true}};
    http::request<http::string_body> request(http::verb::post, "/v1/completions", 11);
    request.set(http::field::host, argv[1]);
    request.set(http::field::content_type, "application/json");
    request.body() = body.dump();
    request.prepare_payload();
    http::write(socket, request);

    std::string received;
    auto buffer = asio::dynamic_buffer(received);
    std::string text;  // of the answer that has not been read
    http::response_parser<http::string_body> answer;
    answer.body_limit(boost::none);
    http::read_header(socket, buffer, answer);
    while (!answer.is_done()) {
      http::read_some(socket, buffer, answer);
      text += std::exchange(answer.get().body(), "");
      if (answer.get().result() != http::status::ok) continue;
      for (std::size_t end; (end = text.find("\n\n")) != std::string::npos; text.erase(0, end + 2)) {
        const auto event = text.substr(6, end - 6);  // after "data: "
        if (event == "[DONE]") continue;
        const auto json = nlohmann::json::parse(event);
        if (json.contains("error")) throw std::runtime_error(json["error"]["message"].get<std::string>());
        for (const auto& choice : json["choices"]) std::cout << choice["text"].get<std::string>() << std::flush;
      }
    }
    if (answer.get().result() != http::status::ok) throw std::runtime_error(text);
    std::cout << '\n';
  } catch (const std::exception& e) {
    return std::cerr << e.what() << '\n', 1;
  }
}
