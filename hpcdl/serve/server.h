#pragma once
// The server: routes, and the way of a call from its request to its answer. docs/serving.md describes it for users.

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "hpcdl/serve/answer.h"
#include "hpcdl/serve/embedding_service.h"
#include "hpcdl/serve/engine_loop.h"
#include "hpcdl/serve/http.h"
#include "hpcdl/serve/metrics.h"
#include "hpcdl/serve/options.h"
#include "hpcdl/serve/served_model.h"

namespace hpcdl::serve {

class Server;

struct ServerHooks {
  /// On the thread of the engine, before its first step; not for an encoder.
  std::function<void(infer::Engine&, ServedModel&)> prepare = {};
  /// On the thread of run(), when the model is loaded and requests are answered.
  std::function<void(const Server&)> ready = {};
  /// Those that share the model, of which this is the first, and the others follow(); null: there are no others.
  infer::RankLink* ranks = nullptr;
};

class Server {
 public:
  /// Listens from now on, and answers 503 while the model is loaded. Throws Error if it cannot.
  explicit Server(const ServerConfig& config, ServerHooks hooks = {}, const HttpLimits& limits = {});

  /// Until drain() and the end of the calls. Throws what loading the model throws, and comm::PeerLost after a rank that
  /// shares the model was lost, when running calls have been answered with status 500.
  void run();
  /// SIGTERM and SIGINT call drain().
  void drain_on_signals();
  /// From any thread: new calls are refused; those that run have ServeSection::drain seconds to end.
  void drain();

  const std::string& address() const { return http_.address(); }
  /// Of the loaded model.
  const ModelFacts& facts() const { return embeddings_ ? *encoder_facts_ : model_->facts(); }
  /// For keys and values; an encoder has none.
  std::int64_t pages() const { return embeddings_ ? 0 : model_->pages(); }

 private:
  enum class State { loading, serving, draining };
  struct Running {
    std::unique_ptr<Answer> answer;
    std::vector<std::uint64_t> ids;  // of its choices
  };
  struct Text {
    std::shared_ptr<Running> of;
    std::size_t choice;
  };
  using Reply = std::shared_ptr<Exchange>;

  std::unique_ptr<infer::Engine> open();
  void start_engine();
  void start_encoder(const std::filesystem::path& folder);
  void loaded();
  void end_threads();
  bool is_full(std::size_t more, const Reply& reply);
  void handle(HttpRequest request, const Reply& reply);
  void handle_post(HttpRequest request, const Reply& reply);
  std::function<void()> read_post(const HttpRequest& request, const Reply& reply);
  void start(Call call, const Reply& reply);
  void start(EmbeddingCall call, const Reply& reply);
  void take(const Event& event);
  void cancel(const Running& running);
  void stop_if_idle();
  void send(const Reply& reply, const Json& body) const;
  void send_model(const std::string& name, const Reply& reply);
  void refuse(const Reply& reply, int status, std::string_view message, std::string_view code = "",
              std::string_view headers = "");
  std::string metrics() const;

  const ServerConfig config_;
  ServerHooks hooks_;
  std::string key_;
  State state_ = State::loading;
  std::exception_ptr failure_;
  Metrics metrics_;
  std::unique_ptr<ServedModel> model_;  // made by the thread of the engine
  std::unordered_map<std::uint64_t, Text> texts_;
  std::uint64_t last_id_ = 0;
  std::size_t in_background_ = 0;
  // One of the service and the loop below, as the model's folder asks for. Connections, which end with http_, refer to
  // the service.
  std::optional<ModelFacts> encoder_facts_;
  std::unique_ptr<EmbeddingService> embeddings_;
  HttpServer http_;
  std::unique_ptr<EngineLoop> loop_;
};

}  // namespace hpcdl::serve
