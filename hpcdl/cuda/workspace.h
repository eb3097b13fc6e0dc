#pragma once
// Scratch memory of a stream, for work whose need is known only at its launch: shares of split sums, operands
// that have to be converted first, cuBLASLt. Consecutive work of one stream may use it in turns.

#include <map>
#include <mutex>
#include <utility>

#include "hpcdl/core/cuda_runtime.h"

namespace hpcdl::cuda {

inline constexpr std::size_t kWorkspaceBytes = std::size_t{64} << 20;

/// kWorkspaceBytes, the same for all calls with a stream; taken from the device with the first call, also while the
/// stream is being captured, and kept until the process ends, because captured work may still use it.
inline void* workspace(const Stream& s) {
  static std::mutex mutex;
  static std::map<std::pair<int, void*>, void*> of_stream;
  const std::lock_guard lock(mutex);
  void*& p = of_stream[{s.device().index, s.native()}];
  if (!p) {
    const OnDevice on(s.device());
    auto mode = cudaStreamCaptureModeRelaxed;
    check(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
    const auto status = cudaMalloc(&p, kWorkspaceBytes);
    cudaThreadExchangeStreamCaptureMode(&mode);
    check(status, "cudaMalloc of a stream's workspace");
  }
  return p;
}

}  // namespace hpcdl::cuda
