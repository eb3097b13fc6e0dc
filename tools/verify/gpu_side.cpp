#include "tools/verify/gpu_side.h"

#include <fmt/format.h>

#include <map>

#include "hpcdl/core/error.h"

#if HPCDL_CUDA
#include "hpcdl/core/cuda_runtime.h"
#include "tools/compare/stopwatch.h"
#endif

namespace hpcdl::lab::verify {

#if HPCDL_CUDA

namespace {

using cuda::check;

class OnGpu : public GpuSide {
 public:
  OnGpu() {
    require(cuda_devices() > 0, "verify",
            "expected a GPU with a driver, found none: hpcdl doctor says what is missing");
    check(cudaStreamCreateWithFlags(&queue_, cudaStreamNonBlocking), "cudaStreamCreate");
    grow(kLeast);
  }
  void reset(std::size_t bytes) override {
    placed_.clear();
    if (4 * bytes + kLeast / 2 > capacity_) grow(4 * bytes + kLeast);  // workspaces are added to this
    check(cudaMemsetAsync(arena_, 0xff, std::min(capacity_, used_ + kMargin), queue_), "cudaMemset");
    used_ = kMargin;
  }
  void* place(const Block& b) override {
    const auto [at, fresh] = placed_.try_emplace(b.begin());
    if (!fresh) return at->second.data;
    const auto zone = static_cast<std::size_t>(b.end() - b.begin());
    const auto before = static_cast<std::size_t>(b.data() - b.begin());
    // The operand has the same offset in a cache line as on the host.
    const std::size_t begin =
        (used_ + before + kLine - 1) / kLine * kLine + reinterpret_cast<std::uintptr_t>(b.data()) % kHostLine - before;
    require(begin + zone + kMargin <= capacity_, "verify",
            "the workspace of a kernel needs {} bytes, much more than its operands explain", b.bytes());
    at->second = {const_cast<std::byte*>(b.begin()), arena_ + begin, arena_ + begin + before, zone};
    used_ = begin + zone + kMargin;
    check(cudaMemcpyAsync(arena_ + begin, b.begin(), zone, cudaMemcpyHostToDevice, queue_), "cudaMemcpy");
    return at->second.data;
  }
  std::string fetch() override {
    if (const auto launch = cudaGetLastError(); launch != cudaSuccess)
      return fmt::format("a launch failed: {}", cudaGetErrorString(launch));
    if (const auto status = cudaStreamSynchronize(queue_); status != cudaSuccess)
      return fmt::format("{}{}", kBroken, cudaGetErrorString(status));
    for (const auto& [host, p] : placed_)
      check(cudaMemcpyAsync(p.host, p.zone, p.bytes, cudaMemcpyDeviceToHost, queue_), "cudaMemcpy");
    check(cudaStreamSynchronize(queue_), "copies back");
    return "";
  }
  double seconds(const std::function<void()>& work) override {
    watch_.start(queue_);
    work();
    return watch_.stop(queue_);
  }
  void* stream() override { return queue_; }

 private:
  static constexpr std::size_t kLine = 512, kHostLine = 64, kMargin = 64 << 10, kLeast = 64 << 20;
  struct Placed {
    std::byte *host, *zone, *data;
    std::size_t bytes;
  };
  void grow(std::size_t bytes) {
    if (arena_) check(cudaStreamSynchronize(queue_), "cudaMemset"), check(cudaFree(arena_), "cudaFree");
    void* p = nullptr;
    check(cudaMalloc(&p, bytes), "cudaMalloc");
    arena_ = static_cast<std::byte*>(p), capacity_ = bytes;
    check(cudaMemsetAsync(arena_, 0xff, bytes, queue_), "cudaMemset");
  }

  cudaStream_t queue_ = nullptr;
  std::byte* arena_ = nullptr;
  std::size_t capacity_ = 0, used_ = kMargin;
  std::map<const std::byte*, Placed> placed_;
  compare::Stopwatch watch_;
};

}  // namespace

GpuSide& GpuSide::here() {
  static auto& side = *new OnGpu;  // the driver may be shut down before static objects are destroyed
  return side;
}

#else

GpuSide& GpuSide::here() { fail("verify", "runs on a GPU, and this build has no CUDA: nothing was verified"); }

#endif

}  // namespace hpcdl::lab::verify
