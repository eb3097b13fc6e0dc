#pragma once
// The calls of /v1/embeddings of a server, and the thread that runs their texts through an encoder.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "hpcdl/serve/embeddings.h"
#include "hpcdl/serve/http.h"
#include "hpcdl/serve/loaded_encoder.h"

namespace hpcdl::serve {

/// Texts of several calls go through the encoder together, in turns of a bounded number of tokens to which every call
/// contributes: a short call does not wait for all of a long one.
class EmbeddingService {
 public:
  struct Hooks {
    std::function<void(std::function<void()>)> post;  // runs a function on the thread of the server
    // On the thread of the server:
    std::function<void()> ready;                              // the model is loaded
    std::function<void(std::exception_ptr)> failed;           // it cannot be loaded
    std::function<void(std::size_t texts, bool good)> ended;  // of a call
  };

  EmbeddingService(const EncoderOptions& options, Hooks hooks);
  ~EmbeddingService() { stop(); }
  /// Ends the thread after the current turn. From now on clients that leave change nothing.
  void stop();

  // On the thread of the server, once the model is loaded:
  const LoadedEncoder& encoder() const { return *encoder_; }
  void start(EmbeddingCall call, const std::shared_ptr<Exchange>& reply, const std::string& model);
  /// Answers all calls with an error.
  void fail(int status, std::string_view message);
  std::size_t texts() const { return texts_; }     // that have no vector yet
  std::int64_t tokens() const { return tokens_; }  // of all calls so far

 private:
  struct Open {
    EmbeddingCall call;
    std::shared_ptr<Exchange> reply;
    std::string model;
  };
  struct Job {
    std::uint64_t id;
    std::vector<std::vector<std::int32_t>> texts;
    std::vector<std::vector<float>> vectors = {};  // of the first texts
    std::size_t taken = 0;                         // texts of this and earlier turns
    std::string error = {};
    bool done() const { return !error.empty() || vectors.size() == texts.size(); }
  };
  using Jobs = std::deque<Job>;

  void work();
  bool take_jobs();
  void turn();
  void deliver();
  void end(Job& job);
  void drop(std::uint64_t id);

  Hooks hooks_;
  EncoderOptions options_;
  std::unique_ptr<LoadedEncoder> encoder_;

  // Of the thread of the server.
  std::unordered_map<std::uint64_t, Open> open_;
  std::uint64_t last_id_ = 0;
  std::size_t texts_ = 0;
  std::int64_t tokens_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  Jobs new_;
  std::vector<std::uint64_t> gone_;
  bool ending_ = false;

  Jobs jobs_;  // of the thread below
  std::thread thread_;
};

}  // namespace hpcdl::serve
