#pragma once
// The GPU part of a call: its operands are copied to the GPU with their guard zones, and back after the kernel, so
// that the same checks as on a CPU can be made.

#include <functional>
#include <memory>
#include <string_view>

#include "tools/verify/operands.h"

namespace hpcdl::lab::verify {

class GpuSide {
 public:
  /// Prefix of faults after which nothing can run in this process.
  static constexpr std::string_view kBroken = "on the GPU: ";
  /// One per process, made by the first call: a process that has one must not fork. Throws Error without a GPU.
  static GpuSide& here();
  virtual ~GpuSide() = default;
  /// Begins a new call with blocks of `bytes` in total: removes all placed blocks, and fills memory with NaN.
  virtual void reset(std::size_t bytes) = 0;
  /// Address of a copy of the block, with the same offset in a cache line; a block that is given twice has one copy.
  virtual void* place(const Block& block) = 0;
  /// Waits, and copies back all placed blocks; returns what went wrong on the GPU, "" if nothing.
  virtual std::string fetch() = 0;
  /// Seconds of the work that `queue` queues, by the GPU's clock.
  virtual double seconds(const std::function<void()>& queue) = 0;
  /// A cudaStream_t.
  virtual void* stream() = 0;
};

}  // namespace hpcdl::lab::verify
