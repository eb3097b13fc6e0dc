#pragma once
// The thread that owns an engine. Other threads reach it through a queue.

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "hpcdl/infer/engine.h"

namespace hpcdl::serve {

/// What happened to a text: it has one more token, or it has ended.
struct Event {
  std::uint64_t id = 0;
  std::variant<infer::Token, infer::End> what;
};

class EngineLoop {
 public:
  /// All of them are called on the thread of the engine.
  struct Hooks {
    std::function<std::unique_ptr<infer::Engine>()> open;  // loads the model
    std::function<void()> ready;                           // it is loaded
    std::function<void(std::vector<Event>)> deliver;       // after each pass
    /// It cannot be loaded, or ranks that share the model are lost; the thread ends.
    std::function<void(std::exception_ptr)> failed;
  };

  explicit EngineLoop(Hooks hooks);
  /// Ends the thread after the current step.
  ~EngineLoop();

  /// `id` is the caller's choice and names the text from now on. Its tokens and its end are delivered, also if the
  /// request is wrong.
  void submit(std::uint64_t id, infer::Request request);
  /// The text ends with the reason `cancelled`, unless it has ended already.
  void cancel(std::uint64_t id);
  /// After the last step.
  infer::EngineState state() const;

 private:
  struct Command {
    std::uint64_t id;
    std::optional<infer::Request> request;  // none: cancel
  };
  void work();
  void obey(Command&& command);

  Hooks hooks_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Command> commands_;
  infer::EngineState state_;
  bool ending_ = false;

  // Of the thread.
  std::unique_ptr<infer::Engine> engine_;
  std::unordered_map<std::uint64_t, infer::RequestId> running_;
  std::vector<Event> events_;

  std::thread thread_;
};

}  // namespace hpcdl::serve
