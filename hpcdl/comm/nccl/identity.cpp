#if HPCDL_NCCL

#include "hpcdl/comm/nccl/identity.h"

#include <unistd.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <random>
#include <string>

#include "hpcdl/core/cuda_runtime.h"

namespace hpcdl::comm {
namespace {

/// The boot id of the kernel, and the host name: containers of one host have both in common only if they
/// share the network's namespace, which CUDA IPC does not need, but NCCL's sockets do.
std::uint64_t host_hash() {
  std::string text, line;
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  if (std::getline(boot, line)) text = line;
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) == 0) text += name;
  return std::hash<std::string>{}(text);
}

/// Process ids of two containers may be the same.
std::int64_t process_token() {
  std::random_device draw;
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(draw()) << 32 | draw());
}

}  // namespace

GpuIdentity identity_of(Device device) {
  static const std::uint64_t host = host_hash();
  static const std::int64_t process = process_token();
  cudaDeviceProp properties{};
  cuda::check(cudaGetDeviceProperties(&properties, device.index), "cudaGetDeviceProperties");
  GpuIdentity id{};
  static_assert(sizeof properties.uuid.bytes == sizeof id.uuid);
  std::memcpy(id.uuid.data(), properties.uuid.bytes, sizeof id.uuid);
  id.host = host, id.process = process;
  return id;
}

}  // namespace hpcdl::comm

#endif
