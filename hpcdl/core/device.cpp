#include "hpcdl/device.h"

#include <charconv>

#include "hpcdl/core/error.h"

#if HPCDL_CUDA
#include <cuda_runtime_api.h>
#endif

namespace hpcdl {

int cuda_devices() {
#if HPCDL_CUDA
  int n = 0;
  if (cudaGetDeviceCount(&n) == cudaSuccess) return n;
  cudaGetLastError();  // clears the error of a missing driver, which a later call would report
#endif
  return 0;
}

Device device_from_name(std::string_view name) {
  if (name == "cpu") return Device::cpu();
  int index = 0;
  if (name.starts_with("cuda:")) {
    const auto* end = name.data() + name.size();
    if (const auto [at, error] = std::from_chars(name.data() + 5, end, index);
        error != std::errc() || at != end || index < 0)
      fail_usage("device", "expected cpu, cuda or cuda:N, got \"{}\"", name);
  } else if (name != "cuda") {
    fail_usage("device", "expected cpu, cuda or cuda:N, got \"{}\"", name);
  }
  if (index >= cuda_devices())
    fail_usage("device",
               "{}: this process sees {} GPUs; `hpcdl doctor` says what is missing, --device cpu always works", name,
               cuda_devices());
  return Device::cuda(index);
}

}  // namespace hpcdl
