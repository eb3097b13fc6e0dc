#pragma once

#include <cstdint>

#include "hpcdl/core/device.h"
#include "hpcdl/core/pool.h"

namespace hpcdl {

/// What changes from step to step. Kernels read it, records do not: a program never has to be recorded again because the
/// learning rate moved. On a GPU it lies in device memory.
struct StepParams {
  std::uint64_t seed = 0;       // key of every counter-based draw
  std::int64_t step = 0;        // optimizer steps done so far (0-based number of this one)
  std::int64_t position = 0;    // tokens already in the KV cache
  float lr = 0;                 // learning rate of this step
  float grad_scale = 1;         // every gradient is multiplied by it before use (1 / (loss scale * valid tokens))
  float clip_factor = 1;        // written by the global-norm op
  float grad_norm = 0;          // written by the global-norm op
  std::int32_t skip = 0;        // non-zero: the optimizer leaves everything as it is
};

/// An ordered queue of work on one device, with the threads (CPU) or the native queue (GPU) that run it.
/// On a CPU work is done when the call returns.
class Stream {
 public:
  explicit Stream(Pool& pool, StepParams* params = nullptr) : pool_(&pool), params_(params) {}

  Device device() const { return device_; }
  Pool& pool() const { return *pool_; }
  StepParams& params() const { return *params_; }
  void set_params(StepParams* p) { params_ = p; }
  void* native() const { return native_; }
  /// Waits until everything queued so far is done.
  void synchronize() {}

 private:
  Device device_;
  Pool* pool_ = nullptr;
  StepParams* params_ = nullptr;
  void* native_ = nullptr;
};

/// A point in a stream that another stream can wait for.
class Event {
 public:
  void record(Stream&) {}
  void wait(Stream&) const {}
};

}  // namespace hpcdl
