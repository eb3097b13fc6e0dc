#pragma once
// Runs operations with cuDNN: plans, handles, calls. Only with HPCDL_CUDNN.

#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "hpcdl/cuda/cudnn_library.h"
#include "hpcdl/dtype.h"
#include "hpcdl/stream.h"

namespace hpcdl::cuda::cudnn {

inline cudnnDataType_t type_of(DType d) {
  return d == DType::bf16 ? CUDNN_DATA_BFLOAT16 : d == DType::f16 ? CUDNN_DATA_HALF : CUDNN_DATA_FLOAT;
}

struct Plan {
  Descriptor plan;
  std::int64_t workspace = 0;  // bytes
};

/// The target of a plan: a handle, or for a GPU of another machine its properties (CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR,
/// cuDNN 9.8).
struct Target {
  cudnnHandle_t handle = nullptr;
  const Descriptor* device = nullptr;
};

/// The operation y = mode(x), mode(x, b) or, for a selection, mode(x, b, by t). Axis: for modes that need one.
Descriptor pointwise(cudnnPointwiseMode_t mode, const Descriptor& y, const Descriptor& x, const Descriptor* b = nullptr,
                     const Descriptor* t = nullptr, cudnnDataType_t compute = CUDNN_DATA_FLOAT,
                     std::optional<std::int64_t> axis = {});

/// Whether a caller accepts an engine with these notes on its numerics.
using Accepts = std::function<bool(std::span<const cudnnBackendNumericalNote_t>)>;

/// The library's choices for these operations, in its own order, of the engines that are accepted, with a workspace of
/// at most `most` bytes: at most `count`, maybe none.
std::vector<Plan> plans_of(std::span<const Descriptor> operations, const Target& target, std::int64_t most, int count,
                           const Accepts& accepts);
/// The first of them.
std::optional<Plan> plan_of(std::span<const Descriptor> operations, const Target& target, std::int64_t most,
                            const Accepts& accepts);

/// Allows the library to load what a first use needs while a stream is being captured.
class Relaxed {
 public:
  Relaxed();
  ~Relaxed();
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;

 private:
  int mode_;
};

/// The library on one GPU, for one caller at a time, because a handle serves one call at a time.
class Session {
 public:
  explicit Session(const Stream& s);
  cudnnHandle_t handle() const { return handle_; }
  /// Queues the plan, with its tensors by their ids. Pointers to numbers that are passed by value are read before this
  /// returns.
  void run(const Stream& s, const Plan& plan, std::span<const std::int64_t> ids, std::span<void* const> places,
           void* workspace);

 private:
  std::unique_lock<std::mutex> lock_;
  Relaxed relaxed_;
  cudnnHandle_t handle_;
};

}  // namespace hpcdl::cuda::cudnn
