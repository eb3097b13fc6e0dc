// Hostile bytes on a connection: requests that end anywhere, come in pieces, and follow each other.
#include "hpcdl/serve/http.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <thread>

#include "hpcdl/serve/client_for_tests.h"

namespace {

using namespace hpcdl;

/// Answers with what it was asked, as events where the path is "/events". Never ends.
int port() {
  static serve::HttpServer server("127.0.0.1", 0,
                                  {.header_bytes = 512, .body_bytes = 2048, .unread_bytes = 4096, .ahead_bytes = 1024},
                                  [](serve::HttpRequest r, std::shared_ptr<serve::Exchange> to) {
                                    if (r.path != "/events")
                                      return to->answer(200, "text/plain", r.method + r.path + r.body);
                                    to->start_events();
                                    for (std::size_t i = 0; i < r.body.size(); i += 100)
                                      to->event(std::string_view(r.body).substr(i, 100));
                                    to->end_events();
                                  });
  static std::thread thread([] { server.run(); });
  static const int found = [] {
    thread.detach();
    const auto& a = server.address();
    return std::stoi(a.substr(a.rfind(':') + 1));
  }();
  return found;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  serve::TestClient client(port());
  const std::size_t pieces = 1 + data[0] % 4, piece = bytes.size() / pieces + 1;
  for (std::size_t at = 0; at < bytes.size(); at += piece) client.send(bytes.substr(at, piece));
  client.send_end();
  while (client.more()) {}
  // Whatever came, the next client has its answer.
  if (serve::TestClient(port()).ask("GET", "/").status != 200) std::abort();
  return 0;
}
