#include "hpcdl/io/upload.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "hpcdl/core/error.h"
#include "hpcdl/core/pinned.h"

#if HPCDL_CUDA
#include "hpcdl/core/cuda_runtime.h"
#endif

namespace hpcdl::io {

void Upload::add(const Tensor& to, const View& from) {
  require(to.spec() == from.spec() && to.is_contiguous() && from.is_contiguous(), "memory",
          "expected two contiguous tensors of the same spec to copy");
  require(to.device().is_cuda() && !from.device().is_cuda(), "memory",
          "expected a source in host memory and a destination on a GPU");
  auto* at = static_cast<std::byte*>(to.data());
  const auto* source = static_cast<const std::byte*>(from.data());
  for (std::int64_t done = 0; done < to.bytes(); done += kPiece)
    pieces_.push_back({at + done, source + done, std::min(kPiece, to.bytes() - done)});
  bytes_ += to.bytes();
}

#if HPCDL_CUDA
namespace {

/// The blocks of staging memory of one thread, each with the event after its last copy.
class Staging {
 public:
  Staging(std::byte* memory, cudaStream_t queue) : memory_(memory), queue_(queue) {}
  ~Staging() {
    for (auto* e : done_)
      if (e) cudaEventDestroy(e);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  cudaError_t send(void* to, const void* from, std::int64_t bytes) {
    auto& done = done_[next_];
    auto* block = memory_ + next_ * Upload::kPiece;
    next_ = (next_ + 1) % Upload::kBlocks;
    if (!done) {
      if (const auto e = cudaEventCreateWithFlags(&done, cudaEventDisableTiming); e != cudaSuccess) return e;
    } else if (const auto e = cudaEventSynchronize(done); e != cudaSuccess) {
      return e;
    }
    const auto n = static_cast<std::size_t>(bytes);
    std::memcpy(block, from, n);
    if (const auto e = cudaMemcpyAsync(to, block, n, cudaMemcpyHostToDevice, queue_); e != cudaSuccess) return e;
    return cudaEventRecord(done, queue_);
  }

 private:
  std::byte* memory_;
  cudaStream_t queue_;
  cudaEvent_t done_[Upload::kBlocks] = {};
  int next_ = 0;
};

}  // namespace

void Upload::run(const Stream& s, int threads) {
  constexpr int kFeedTheBus = 8;  // one core copies at 8 to 12 GB/s, the bus transfers 55
  const auto count = static_cast<int>(
      std::min<std::int64_t>(std::ssize(pieces_), std::min(threads > 0 ? threads : kFeedTheBus, s.pool().threads())));
  if (count == 0) return;
  const cuda::OnDevice on(s.device());
  const Pinned memory(count * kBlocks * kPiece, s.device());
  std::atomic<std::int64_t> next{0};
  std::atomic<cudaError_t> failure{cudaSuccess};
  s.pool().run([&](int t) {
    if (t >= count) return;
    cudaSetDevice(s.device().index);
    Staging staging(memory.data() + t * kBlocks * kPiece, cuda::queue(s));
    for (std::int64_t i; failure.load(std::memory_order_relaxed) == cudaSuccess &&
                         (i = next.fetch_add(1, std::memory_order_relaxed)) < std::ssize(pieces_);) {
      const auto& piece = pieces_[static_cast<std::size_t>(i)];
      if (const auto e = staging.send(piece.to, piece.from, piece.bytes); e != cudaSuccess) failure.store(e);
    }
  });
  cuda::check(failure.load(), "a copy to the GPU");
  s.synchronize();
}
#else
void Upload::run(const Stream&, int) { require(pieces_.empty(), "memory", "this build has no CUDA"); }
#endif

}  // namespace hpcdl::io
