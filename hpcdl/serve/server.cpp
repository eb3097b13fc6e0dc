#include "hpcdl/serve/server.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/io/file.h"
#include "hpcdl/io/model_folder.h"

namespace hpcdl::serve {

namespace {

constexpr const char* kJson = "application/json";
constexpr std::string_view kOneModel = "/v1/models/";
constexpr std::size_t kQuickBody = 32 << 10;  // bytes that are read and encoded in less than some milliseconds

std::string key_of(const std::filesystem::path& file) {
  if (file.empty()) return "";
  auto key = io::read_file(file);
  key.erase(key.find_last_not_of(" \t\r\n") + 1);
  if (key.empty() || key.find_first_of(" \t\r\n") != key.npos)
    fail_usage("serve", "{}: expected a key of one word", file.string());
  return key;
}

/// In a time that does not depend on where they differ.
bool same(std::string_view a, std::string_view b) {
  unsigned char differs = a.size() != b.size();
  for (std::size_t i = 0; i < a.size(); ++i)
    differs |= static_cast<unsigned char>(a[i] ^ (b.empty() ? 0 : b[i % b.size()]));
  return differs == 0;
}

/// An entry of /v1/models; -1: the model without an adapter.
Json model_body(const ModelFacts& facts, std::int32_t adapter) {
  Json body{{"id", facts.name_with(adapter)},
            {"object", "model"},
            {"created", facts.created},
            {"owned_by", "hpcdl"},
            {"max_model_len", facts.context}};
  if (adapter >= 0) body["parent"] = facts.name;
  return body;
}

Json models_body(const ModelFacts& facts) {
  auto list = Json::array();
  for (std::int32_t i = -1; i < std::ssize(facts.adapters); ++i) list.push_back(model_body(facts, i));
  return {{"object", "list"}, {"data", list}};
}

/// With its escapes, such as %2F, as the characters that they stand for.
std::string unescaped(std::string_view path) {
  std::string text;
  for (std::size_t i = 0; i < path.size(); ++i) {
    unsigned char byte = 0;
    const auto* const digits = path.data() + i + 1;
    if (path[i] == '%' && path.size() - i > 2 && std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2)
      text += static_cast<char>(byte), i += 2;
    else text += path[i];
  }
  return text;
}

}  // namespace

Server::Server(const ServerConfig& config, ServerHooks hooks, const HttpLimits& limits)
    : config_(config),
      hooks_(std::move(hooks)),
      key_(key_of(config.serve.api_key)),
      http_(config.serve.host, config.serve.port, limits,
            [this](HttpRequest request, const Reply& reply) { handle(std::move(request), reply); }) {}

std::unique_ptr<infer::Engine> Server::open() {
  model_ = std::make_unique<ServedModel>(config_, hooks_.ranks);
  auto engine = std::make_unique<infer::Engine>(model_->model(), model_->pool(), model_->engine_options());
  if (hooks_.prepare) hooks_.prepare(*engine, *model_);
  if (config_.engine.warm) engine->warm();
  return engine;
}

void Server::loaded() {
  if (state_ == State::loading) state_ = State::serving;
  if (hooks_.ready) hooks_.ready(*this);
  stop_if_idle();
}

void Server::start_engine() {
  loop_ = std::make_unique<EngineLoop>(
      EngineLoop::Hooks{.open = [this] { return open(); },
                        .ready = [this] { http_.post([this] { loaded(); }); },
                        .deliver =
                            [this](std::vector<Event> events) {
                              http_.post([this, events = std::move(events)] {
                                for (const auto& e : events) take(e);
                              });
                            },
                        .failed =
                            [this](const std::exception_ptr& failure) {
                              http_.post([this, failure] { failure_ = failure, http_.stop(); });
                            }});
}

void Server::start_encoder(const std::filesystem::path& folder) {
  const auto& e = config_.engine;
  encoder_facts_ = facts_of(config_, folder);
  embeddings_ = std::make_unique<EmbeddingService>(
      EncoderOptions{.model = e.model,
                     .device = e.device,
                     .dtype = models::dtype_of(e.dtype),
                     .threads = e.threads,
                     .budget = e.budget},
      EmbeddingService::Hooks{.post = [this](std::function<void()> f) { http_.post(std::move(f)); },
                              .ready =
                                  [this] {
                                    const auto& model = embeddings_->encoder().model();
                                    auto& f = *encoder_facts_;
                                    f.context = model.embedding().longest, f.vocab = model.config().vocab;
                                    f.no_chat = f.name + " is an encoder: use /v1/embeddings";
                                    loaded();
                                  },
                              .failed = [this](const std::exception_ptr& failure) { failure_ = failure, http_.stop(); },
                              .ended =
                                  [this](std::size_t texts, bool good) {
                                    metrics_.texts += texts, metrics_.failed += good ? 0 : texts;
                                    stop_if_idle();
                                  }});
}

void Server::end_threads() {
  loop_.reset();
  if (embeddings_) embeddings_->stop();
}

void Server::run() {
  const auto folder = io::find_model_folder(config_.engine.model);
  const bool encodes = models::is_encoder(folder);
  if (encodes && hooks_.ranks)
    fail_usage("serve", "{} is an encoder, which ranks do not share: start one server without other ranks",
               folder.string());
  if (encodes && !config_.engine.adapter.empty())
    fail_usage("serve", "{} is an encoder, which uses no adapter: leave out --adapter", folder.string());
  if (encodes) start_encoder(folder);
  else start_engine();
  try {
    http_.run();
  } catch (...) {
    end_threads();
    throw;
  }
  end_threads();
  if (failure_) std::rethrow_exception(failure_);
}

void Server::drain_on_signals() {
  http_.on_stop_signal([this] { drain(); });
}

void Server::drain() {
  http_.post([this] {
    if (std::exchange(state_, State::draining) == State::draining) return;
    const auto time =
        std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::duration<double>(config_.serve.drain));
    http_.after(time, [this] {
      for (const auto& [_, text] : texts_) text.of->answer->fail(503, "the server ends");
      if (embeddings_) embeddings_->fail(503, "the server ends");
      http_.stop();
    });
    stop_if_idle();
  });
}

void Server::stop_if_idle() {
  const bool idle = texts_.empty() && in_background_ == 0 && (!embeddings_ || embeddings_->texts() == 0);
  if (state_ == State::draining && idle) http_.stop();
}

void Server::send(const Reply& reply, const Json& body) const {
  reply->answer(200, kJson, body.dump(-1, ' ', false, Json::error_handler_t::replace));
}

void Server::refuse(const Reply& reply, int status, std::string_view message, std::string_view code,
                    std::string_view headers) {
  ++metrics_.refused;
  reply->answer(status, kJson, error_body(status, message, code), headers);
}

std::string Server::metrics() const {
  const auto running = std::count_if(texts_.begin(), texts_.end(),
                                     [](const auto& t) { return t.second.of->answer->has_token(t.second.choice); });
  if (embeddings_)
    return metrics_.text(embeddings_->texts(), 0, http_.connections(), {.prompt_tokens = embeddings_->tokens()});
  return metrics_.text(texts_.size() - static_cast<std::size_t>(running), static_cast<std::size_t>(running),
                       http_.connections(), state_ == State::loading ? infer::EngineState() : loop_->state());
}

void Server::handle(HttpRequest request, const Reply& reply) {
  const auto& path = request.path;
  const bool get = request.method == "GET";
  if (path == "/health" && get) {
    const char* const status = state_ == State::loading ? "loading" : state_ == State::serving ? "ok" : "draining";
    return reply->answer(state_ == State::serving ? 200 : 503, kJson, Json{{"status", status}}.dump());
  }
  constexpr std::string_view kBearer = "Bearer ";
  const std::string_view given = request.authorization;
  if (!key_.empty() && !(given.starts_with(kBearer) && same(given.substr(kBearer.size()), key_)))
    return refuse(reply, 401, "expected the header Authorization: Bearer KEY with the key of this server",
                  "invalid_api_key", "WWW-Authenticate: Bearer\r\n");
  constexpr std::string_view kPosts[] = {"/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/tokenize",
                                         "/detokenize"};
  const bool posts = std::ranges::find(kPosts, path) != std::end(kPosts), one = path.starts_with(kOneModel),
             gets = path == "/metrics" || path == "/v1/models" || path == "/health" || one;
  if (!posts && !gets) return refuse(reply, 404, "there is no " + path, "not_found");
  if (request.method != (posts ? "POST" : "GET"))
    return refuse(reply, 405, fmt::format("{} expects {}, found {}", path, posts ? "POST" : "GET", request.method), "",
                  posts ? "Allow: POST\r\n" : "Allow: GET\r\n");
  if (path == "/metrics") return reply->answer(200, "text/plain; version=0.0.4; charset=utf-8", metrics());
  if (state_ != State::serving)
    return refuse(reply, 503, state_ == State::loading ? "the model is being loaded" : "the server ends", "",
                  "Retry-After: 5\r\n");
  if (path == "/v1/models") return send(reply, models_body(facts()));
  if (one) return send_model(unescaped(std::string_view(path).substr(kOneModel.size())), reply);
  handle_post(std::move(request), reply);
}

void Server::send_model(const std::string& name, const Reply& reply) {
  try {
    send(reply, model_body(facts(), adapter_called(name, facts())));
  } catch (const Refusal& r) {
    refuse(reply, r.status, r.what(), r.code);
  }
}

/// Reads a request; what it returns answers it, on the thread of the server.
std::function<void()> Server::read_post(const HttpRequest& request, const Reply& reply) {
  const auto& path = request.path;
  if (path == "/tokenize" || path == "/detokenize")
    return [this, reply, body = (path == "/tokenize" ? tokenize : detokenize)(request.body, facts())] {
      send(reply, body);
    };
  if (path == "/v1/embeddings") {
    if (!embeddings_) throw Refusal(400, facts().name + " continues texts: /v1/embeddings needs an encoder");
    return [this, reply, call = read_embeddings(request.body, facts(), embeddings_->encoder())] { start(call, reply); };
  }
  if (embeddings_) throw Refusal(400, facts().no_chat);
  return [this, reply, call = (path == "/v1/completions" ? read_completion : read_chat)(request.body, facts())] {
    start(call, reply);
  };
}

/// A long body is read and encoded beside the other connections.
void Server::handle_post(HttpRequest request, const Reply& reply) {
  const bool quick = request.body.size() <= kQuickBody;
  const auto read = [this, request = std::move(request), reply]() -> std::function<void()> {
    try {
      return read_post(request, reply);
    } catch (const Refusal& r) {
      return [this, reply, r] { refuse(reply, r.status, r.what(), r.code); };
    } catch (const Error& e) {
      return [this, reply, message = std::string(e.what())] { refuse(reply, 400, message); };
    } catch (const std::exception& e) {
      return [this, reply, message = std::string(e.what())] { refuse(reply, 500, message); };
    }
  };
  if (quick) return read()();
  ++in_background_;
  http_.in_background([this, read]() -> std::function<void()> {
    return [this, then = read()] {
      --in_background_;
      then();
      stop_if_idle();
    };
  });
}

/// Whether so many texts more are too many; then the request is refused.
bool Server::is_full(std::size_t more, const Reply& reply) {
  const auto most = static_cast<std::size_t>(config_.engine.batch + config_.serve.queue),
             now = embeddings_ ? embeddings_->texts() : texts_.size();
  if (now == 0 || now + more <= most) return false;
  refuse(reply, 429, fmt::format("{} texts wait or run already: try again later", now), "queue_full",
         "Retry-After: 1\r\n");
  return true;
}

void Server::start(EmbeddingCall call, const Reply& reply) {
  if (reply->waits() && !is_full(call.texts.size(), reply)) embeddings_->start(std::move(call), reply, facts().name);
}

void Server::start(Call call, const Reply& reply) {
  const auto more = call.choices();
  if (!reply->waits() || is_full(more, reply)) return;
  auto running = std::make_shared<Running>();
  running->answer = std::make_unique<Answer>(std::move(call), reply, facts(), metrics_);
  reply->on_gone = [this, running] {
    running->answer->fail(499, "the client has left");
    cancel(*running);
  };
  for (std::size_t i = 0; i < more; ++i) {
    running->ids.push_back(++last_id_);
    texts_.emplace(last_id_, Text{running, i});
    loop_->submit(last_id_, running->answer->call().of_choice(i));
  }
}

void Server::cancel(const Running& running) {
  for (const auto id : running.ids)
    if (loop_ && texts_.contains(id)) loop_->cancel(id);
}

void Server::take(const Event& event) {
  const auto it = texts_.find(event.id);
  if (it == texts_.end()) return;
  const auto text = it->second;
  auto& answer = *text.of->answer;
  const bool complete = answer.complete();
  const auto* const token = std::get_if<infer::Token>(&event.what);
  if (!token) texts_.erase(it);
  try {
    if (!token) answer.end(text.choice, std::get<infer::End>(event.what));
    else if (!answer.token(text.choice, *token)) loop_->cancel(event.id);
  } catch (const std::exception& e) {
    answer.fail(500, e.what());
  }
  if (!complete && answer.complete()) cancel(*text.of);  // of what is left, if it failed
  stop_if_idle();
}

}  // namespace hpcdl::serve
