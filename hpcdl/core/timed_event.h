#pragma once

#include <memory>

#include "hpcdl/stream.h"

namespace hpcdl {

/// An Event that also records its time. Costs a GPU a time stamp. One that is recorded while work is captured
/// is reached in every launch of it, and only the last one counts; then only the host may wait for it.
class TimedEvent {
 public:
  void record(const Stream&);
  void wait(const Stream&) const;
  explicit operator bool() const { return native_ != nullptr; }
  /// Seconds from `begin` to `end`, negative if `end` came first; the host waits for both. They may be of different
  /// streams of one GPU. On a CPU, whose streams never have queued work: 0.
  static double seconds_between(const TimedEvent& begin, const TimedEvent& end);

 private:
  std::shared_ptr<void> native_;
};

}  // namespace hpcdl
