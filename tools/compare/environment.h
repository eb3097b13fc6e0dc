#pragma once
// The device and the clock of the protocol: everything that a test replaces, and everything that
// differs between a CPU and a GPU.

#include <functional>
#include <memory>
#include <string>

#include "hpcdl/buffer.h"
#include "hpcdl/pool.h"
#include "hpcdl/stream.h"

namespace hpcdl::lab::compare {

class Environment {
 public:
  virtual ~Environment() = default;
  /// Seconds since some fixed moment.
  virtual double now() = 0;
  /// Returns when all queued work of the device is done.
  virtual void synchronize() = 0;
  /// Removes the data of earlier calls from all caches of the device.
  virtual void flush() = 0;
  /// Idles, so that threads of another library stop spinning.
  virtual void sleep(double seconds) = 0;
  /// Describes flush() for the result.
  virtual std::string flush_method() const = 0;
  /// Seconds that `calls` calls take, queued without gaps until they are done. A GPU may use its own timers.
  virtual double time(const std::function<void()>& call, int calls);
};

/// This machine's CPU. Calls are done when they return; flush() reads memory of more than twice the last-level cache
/// with every thread, so that dirty lines are written back before the clock starts and each core's own caches turn
/// over.
class HostEnvironment : public Environment {
 public:
  explicit HostEnvironment(Pool& pool) : pool_(&pool) {}
  double now() override;
  void synchronize() override {}
  void flush() override;
  void sleep(double seconds) override;
  std::string flush_method() const override;

 private:
  Pool* pool_;
  Buffer sweep_;  // made by the first flush
};

/// That of the device of a stream, with its threads.
std::unique_ptr<Environment> environment_of(const Stream& s);

}  // namespace hpcdl::lab::compare
