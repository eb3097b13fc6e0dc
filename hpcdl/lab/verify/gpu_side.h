#pragma once
// The GPU's side of a call: its operands are copied there with their guard zones, and back when the kernel is done, so
// that everything that is looked at on a CPU can be looked at in the same way.

#include <functional>
#include <memory>
#include <string_view>

#include "hpcdl/lab/verify/operands.h"

namespace hpcdl::lab::verify {

class GpuSide {
 public:
  /// How faults begin after which nothing more runs in this process.
  static constexpr std::string_view kBroken = "on the GPU: ";
  /// Of this process, made by the first call: a process that has one must not fork. Throws Error without a GPU.
  static GpuSide& here();
  virtual ~GpuSide() = default;
  /// A new call with blocks of `bytes` in all: nothing is placed any more, and everything reads as NaN.
  virtual void reset(std::size_t bytes) = 0;
  /// Where a copy of the block lies, in the same place of a cache line; one copy of a block that is given again.
  virtual void* place(const Block& block) = 0;
  /// Waits, and copies back all that was placed; what went wrong on the GPU, "" if nothing.
  virtual std::string fetch() = 0;
  /// Seconds of work that `queue` queues, by the GPU's clock.
  virtual double seconds(const std::function<void()>& queue) = 0;
  /// A cudaStream_t.
  virtual void* stream() = 0;
};

}  // namespace hpcdl::lab::verify
