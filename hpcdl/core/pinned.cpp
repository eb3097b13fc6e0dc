#include "hpcdl/core/pinned.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "hpcdl/core/error.h"

#if HPCDL_CUDA
#include "hpcdl/core/cuda_runtime.h"
#endif

namespace hpcdl {

Pinned::Pinned(std::int64_t bytes, Device device) : bytes_(bytes), device_(device) {
  if (bytes <= 0) return;
#if HPCDL_CUDA
  if (device.is_cuda()) {
    void* p = nullptr;
    cuda::check(cudaMallocHost(&p, static_cast<std::size_t>(bytes)), "cudaMallocHost");
    data_ = static_cast<std::byte*>(p);
    return;
  }
#endif
  data_ = static_cast<std::byte*>(std::aligned_alloc(64, static_cast<std::size_t>((bytes + 63) / 64 * 64)));
  require(data_ != nullptr, "memory", "cannot allocate {} bytes: out of memory", bytes);
}

Pinned::~Pinned() {
#if HPCDL_CUDA
  if (device_.is_cuda()) cudaFreeHost(data_);
#endif
  if (!device_.is_cuda()) std::free(data_);
}

void populate(std::byte* data, std::int64_t bytes) {
#ifdef MADV_POPULATE_WRITE
  constexpr std::uintptr_t kPage = 4096;
  const auto begin = reinterpret_cast<std::uintptr_t>(data), end = begin + static_cast<std::uintptr_t>(bytes);
  const auto first = (begin + kPage - 1) / kPage * kPage, last = end / kPage * kPage;
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_POPULATE_WRITE);
#else
  static_cast<void>(data), static_cast<void>(bytes);
#endif
}

PinnedRange::PinnedRange([[maybe_unused]] std::byte* data, [[maybe_unused]] std::int64_t bytes,
                         [[maybe_unused]] Device device) {
#if HPCDL_CUDA
  if (!device.is_cuda() || bytes <= 0) return;
  const cuda::OnDevice on(device);
  if (cudaHostRegister(data, static_cast<std::size_t>(bytes), cudaHostRegisterPortable) == cudaSuccess) data_ = data;
  else cudaGetLastError();
#endif
}

PinnedRange::~PinnedRange() {
#if HPCDL_CUDA
  if (data_) cudaHostUnregister(data_);
#endif
}

void copy_to_pinned(const Stream& s, void* to, const View& from) {
  require(from.is_contiguous(), "memory", "expected a contiguous tensor to copy");
  const auto bytes = static_cast<std::size_t>(from.bytes());
#if HPCDL_CUDA
  if (s.device().is_cuda())
    return cuda::check(cudaMemcpyAsync(to, from.data(), bytes, cudaMemcpyDeviceToHost, cuda::queue(s)),
                       "a copy from the GPU");
#endif
  s.require_cpu();
  std::memcpy(to, from.data(), bytes);
}

}  // namespace hpcdl
