#include "hpcdl/serve/engine_loop.h"

#include <utility>

namespace hpcdl::serve {

namespace {
constexpr std::chrono::seconds kRanksAreChecked{1};  // how often, while there is no text
}

EngineLoop::EngineLoop(Hooks hooks) : hooks_(std::move(hooks)), thread_([this] { work(); }) {}

EngineLoop::~EngineLoop() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void EngineLoop::submit(std::uint64_t id, infer::Request request) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back({id, std::move(request)});
  }
  changed_.notify_one();
}

void EngineLoop::cancel(std::uint64_t id) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back({id, std::nullopt});
  }
  changed_.notify_one();
}

infer::EngineState EngineLoop::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

void EngineLoop::obey(Command&& command) {
  const auto id = command.id;
  if (!command.request) {
    if (const auto it = running_.find(id); it != running_.end()) engine_->cancel(it->second);
    return;
  }
  auto& r = *command.request;
  r.on_token = [this, id](const infer::Token& token) {
    // A step may be several passes; a pass has at most one token of a text, and its clients need not wait for the next.
    if (!events_.empty() && events_.front().id == id) hooks_.deliver(std::exchange(events_, {}));
    events_.push_back({id, token});
    return true;
  };
  r.on_end = [this, id](const infer::End& end) {
    events_.push_back({id, end});
    running_.erase(id);
  };
  try {
    running_.emplace(id, engine_->submit(std::move(r)));
  } catch (const Error& e) {
    events_.push_back({id, infer::End{.reason = infer::End::Reason::failed, .message = e.what()}});
  }
}

void EngineLoop::work() {
  try {
    engine_ = hooks_.open();
  } catch (...) {
    return hooks_.failed(std::current_exception());
  }
  engine_->interrupt_when([this] {
    const std::lock_guard lock(mutex_);
    return ending_ || !commands_.empty();
  });
  {
    const std::lock_guard lock(mutex_);
    state_ = engine_->state();
  }
  hooks_.ready();
  for (;;) {
    std::vector<Command> commands;
    {
      std::unique_lock lock(mutex_);
      state_ = engine_->state();
      const auto wakes = [&] { return ending_ || !commands_.empty() || !running_.empty(); };
      if (!engine_->shared()) changed_.wait(lock, wakes);
      else changed_.wait_for(lock, kRanksAreChecked, wakes);
      if (ending_) return;
      std::swap(commands, commands_);
    }
    for (auto& c : commands) obey(std::move(c));
    std::exception_ptr end;
    try {
      engine_->check_ranks();
      engine_->step();
    } catch (const std::exception& e) {  // all texts are gone
      for (const auto& [id, _] : std::exchange(running_, {}))
        events_.push_back({id, infer::End{.reason = infer::End::Reason::failed, .message = e.what()}});
      if (engine_->shared()) end = std::current_exception();
    }
    if (!events_.empty()) hooks_.deliver(std::exchange(events_, {}));
    if (end) return hooks_.failed(end);
  }
}

}  // namespace hpcdl::serve
