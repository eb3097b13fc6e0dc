#include "hpcdl/core/available_memory.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>

#if HPCDL_CUDA
#include "hpcdl/core/cuda_runtime.h"
#endif

namespace hpcdl {

namespace {

/// A value of /proc/meminfo; negative if it is missing.
std::int64_t memory_to_spare() {
  std::ifstream in("/proc/meminfo");
  for (std::string key, unit; in >> key;) {
    std::int64_t kib = 0;
    in >> kib;
    std::getline(in, unit);
    if (key == "MemAvailable:") return kib * 1024;
  }
  return -1;
}

struct Taken {
  std::int64_t address_space = 0, resident = 0, data = 0;
};

Taken taken() {
  std::ifstream in("/proc/self/statm");
  std::int64_t size = 0, resident = 0, shared = 0, text = 0, library = 0, data = 0;
  in >> size >> resident >> shared >> text >> library >> data;
  const auto page = static_cast<std::int64_t>(sysconf(_SC_PAGESIZE));
  return {size * page, resident * page, data * page};
}

void lower(Room& room, std::int64_t bytes, const char* of) {
  if (bytes < room.bytes) room = {std::max<std::int64_t>(bytes, 0), of};
}

Room host_room(int share, std::int64_t limit, std::int64_t reserved) {
  Room room{std::numeric_limits<std::int64_t>::max(), "no limit"};
  if (const auto spare = memory_to_spare(); spare >= 0) lower(room, spare / share, "free memory of the host");
  const auto now = taken();
  const auto of_limit = [&](__rlimit_resource which, std::int64_t has, const char* of) {
    rlimit l{};
    if (getrlimit(which, &l) == 0 && l.rlim_cur != RLIM_INFINITY &&
        l.rlim_cur < static_cast<rlim_t>(std::numeric_limits<std::int64_t>::max()))
      lower(room, static_cast<std::int64_t>(l.rlim_cur) - has, of);
  };
  of_limit(RLIMIT_AS, now.address_space + reserved, "address space that ulimit -v leaves");
  of_limit(RLIMIT_DATA, now.data, "memory that ulimit -d leaves");
  if (limit > 0) lower(room, limit / share - now.resident, "memory that the cgroup leaves");
  return room;
}

}  // namespace

Room available_memory(Device device, int share, std::int64_t limit, std::int64_t reserved) {
  if (!device.is_cuda()) return host_room(std::max(share, 1), limit, reserved);
#if HPCDL_CUDA
  const cuda::OnDevice on(device);
  std::size_t available = 0, total = 0;
  cuda::check(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
  return {static_cast<std::int64_t>(available), fmt::format("free memory of GPU {}", device.index)};
#else
  return {};
#endif
}

}  // namespace hpcdl
