#include "hpcdl/buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "hpcdl/core/error.h"
#include "hpcdl/core/red_zone.h"

#if HPCDL_CUDA
#include "hpcdl/core/cuda_runtime.h"
#endif

namespace hpcdl {
namespace {
constexpr std::int64_t kHuge = std::int64_t{2} << 20;

std::byte* device_allocate([[maybe_unused]] Device device, [[maybe_unused]] std::int64_t bytes) {
#if HPCDL_CUDA
  const cuda::OnDevice on(device);
  void* p = nullptr;
  if (bytes == 0) return nullptr;
  const auto n = static_cast<std::size_t>(bytes);
  const auto status = cudaMalloc(&p, n);
  if (status != cudaSuccess) {
    cudaGetLastError();
    std::size_t available = 0, total = 0;
    cudaMemGetInfo(&available, &total);
    fail("memory", "cannot allocate {} bytes on GPU {}: {} ({} of {} bytes are free)", bytes, device.index,
         cudaGetErrorString(status), available, total);
  }
  cuda::check(cudaMemset(p, 0, n), "cudaMemset");
  cuda::check(cudaDeviceSynchronize(), "cudaMemset");  // streams do not wait for the default one
  return static_cast<std::byte*>(p);
#else
  fail("memory", "this build has no CUDA: configure it with --preset cuda on a machine with nvcc");
#endif
}

void device_free([[maybe_unused]] std::byte* p) {
#if HPCDL_CUDA
  cudaFree(p);
#endif
}

}  // namespace

Buffer::Buffer(std::int64_t bytes, Device device) : bytes_(bytes), device_(device) {
  require(bytes >= 0, "memory", "cannot allocate {} bytes", bytes);
  if (device.is_cuda()) {
    data_ = device_allocate(device, bytes);
    return;
  }
  if (bytes < kHuge) {
    const std::int64_t size = (bytes + 127) / 64 * 64;
    data_ = static_cast<std::byte*>(std::aligned_alloc(64, static_cast<std::size_t>(size)));
    require(data_ != nullptr, "memory", "cannot allocate {} bytes: out of memory", bytes);
    std::memset(data_, 0, static_cast<std::size_t>(bytes));
    close_red_zone(data_ + bytes, data_ + size);
    return;
  }
  const std::int64_t size = (bytes + kHuge - 1) / kHuge * kHuge;
  void* p = mmap(nullptr, static_cast<std::size_t>(size + kHuge), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  require(p != MAP_FAILED, "memory", "cannot allocate {} bytes: {}", bytes, std::strerror(errno));
  // Trim the mapping to a 2 MiB boundary at both ends.
  auto at = reinterpret_cast<std::uintptr_t>(p);
  const auto aligned = (at + kHuge - 1) / kHuge * kHuge;
  if (aligned > at) munmap(p, aligned - at);
  const auto tail = at + static_cast<std::uintptr_t>(kHuge) - aligned;
  data_ = reinterpret_cast<std::byte*>(aligned);
  if (tail > 0) munmap(data_ + size, tail);
  madvise(data_, static_cast<std::size_t>(size), MADV_HUGEPAGE);
  close_red_zone(data_ + bytes, data_ + size);
  mapped_ = size;
}

Buffer::~Buffer() {
  if (device_.is_cuda()) {
    device_free(data_);
  } else if (mapped_ > 0) {
    open_red_zone(data_ + bytes_, data_ + mapped_);
    munmap(data_, static_cast<std::size_t>(mapped_));
  } else {
    std::free(data_);
  }
}

}  // namespace hpcdl
