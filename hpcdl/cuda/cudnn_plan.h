#pragma once
// From operations to something that runs: cuDNN's plans, its handles, its calls. Only where HPCDL_CUDNN.

#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "hpcdl/core/dtype.h"
#include "hpcdl/core/stream.h"
#include "hpcdl/cuda/cudnn_library.h"

namespace hpcdl::cuda::cudnn {

inline cudnnDataType_t type_of(DType d) {
  return d == DType::bf16 ? CUDNN_DATA_BFLOAT16 : d == DType::f16 ? CUDNN_DATA_HALF : CUDNN_DATA_FLOAT;
}

struct Plan {
  Descriptor plan;
  std::int64_t workspace = 0;  // bytes
};

/// Where a plan is for: a handle, or for a GPU that is elsewhere its properties (CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR,
/// cuDNN 9.8).
struct Target {
  cudnnHandle_t handle = nullptr;
  const Descriptor* device = nullptr;
};

/// The operation y = mode(x), mode(x, b) or, of a choice, mode(x, b, by t). Axis: of those that ask for one.
Descriptor pointwise(cudnnPointwiseMode_t mode, const Descriptor& y, const Descriptor& x, const Descriptor* b = nullptr,
                     const Descriptor* t = nullptr, cudnnDataType_t compute = CUDNN_DATA_FLOAT,
                     std::optional<std::int64_t> axis = {});

/// Whether a caller takes an engine with these notes on its numerics.
using Accepts = std::function<bool(std::span<const cudnnBackendNumericalNote_t>)>;

/// The library's choices for these operations, in its own order, of the engines that are accepted, with a workspace of
/// at most `most` bytes: `count` at most, none where it has none.
std::vector<Plan> plans_of(std::span<const Descriptor> operations, const Target& target, std::int64_t most, int count,
                           const Accepts& accepts);
/// The first of them.
std::optional<Plan> plan_of(std::span<const Descriptor> operations, const Target& target, std::int64_t most,
                            const Accepts& accepts);

/// Lets the library load what it needs at a first use while a stream is being captured.
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
  /// Queues the plan, its tensors by their ids. Pointers to numbers that are passed by value are read before this
  /// returns.
  void run(const Stream& s, const Plan& plan, std::span<const std::int64_t> ids, std::span<void* const> places,
           void* workspace);

 private:
  std::unique_lock<std::mutex> lock_;
  Relaxed relaxed_;
  cudnnHandle_t handle_;
};

}  // namespace hpcdl::cuda::cudnn
