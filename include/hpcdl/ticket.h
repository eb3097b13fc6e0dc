#pragma once
// Work that a CPU has begun and that other threads may still be doing. A GPU needs none: its streams order what is
// queued.

#include <chrono>
#include <functional>
#include <utility>

namespace hpcdl {

class Ticket {
 public:
  using Clock = std::chrono::steady_clock;
  /// When the work ran.
  struct Span {
    Clock::time_point begin, end;
  };

  Ticket() = default;  // of nothing
  /// `wait` returns when the work is done, and throws what went wrong in it. It is called once at most.
  explicit Ticket(std::function<Span()> wait) : wait_(std::move(wait)) {}

  /// Whether somebody has to wait() for it.
  explicit operator bool() const { return static_cast<bool>(wait_); }
  /// Returns when the work is done; afterwards this is a ticket of nothing.
  Span wait() {
    const auto wait = std::exchange(wait_, nullptr);
    return wait ? wait() : Span();
  }

 private:
  std::function<Span()> wait_;
};

}  // namespace hpcdl
