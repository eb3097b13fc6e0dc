#pragma once
// Scratch memory of a stream, for work whose need is known only at its launch: shares of split sums, operands
// that have to be converted first, cuBLASLt. Consecutive work of one stream may use it in turns.

#include <map>
#include <mutex>
#include <tuple>

#include "hpcdl/core/cuda_runtime.h"

namespace hpcdl::cuda {

inline constexpr std::size_t kWorkspaceBytes = std::size_t{64} << 20;

/// Levels 0 and 1 have kWorkspaceBytes. Level 1 is for work that runs other work, which may use level 0; level 2 for such
/// work that does not fit there.
constexpr std::size_t workspace_bytes(int level) { return level < 2 ? kWorkspaceBytes : 4 * kWorkspaceBytes; }

/// workspace_bytes(level), the same for all calls with a stream and a level; taken from the device with the first call,
/// also while the stream is being captured, and kept until the process ends, because captured work may still use it.
inline void* workspace(const Stream& s, int level = 0) {
  static std::mutex mutex;
  static std::map<std::tuple<int, void*, int>, void*> of_stream;
  const std::lock_guard lock(mutex);
  void*& p = of_stream[{s.device().index, s.native(), level}];
  if (!p) {
    const OnDevice on(s.device());
    auto mode = cudaStreamCaptureModeRelaxed;
    check(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
    const auto status = cudaMalloc(&p, workspace_bytes(level));
    cudaThreadExchangeStreamCaptureMode(&mode);
    check(status, "cudaMalloc of a stream's workspace");
  }
  return p;
}

}  // namespace hpcdl::cuda
