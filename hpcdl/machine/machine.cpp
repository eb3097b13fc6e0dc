#include "hpcdl/machine/machine.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "hpcdl/core/cgroup.h"
#include "hpcdl/simd/isa.h"

namespace hpcdl::lab {

namespace {

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

/// The value after "key : value" or "key: value kB"; empty if there is none.
std::string field(const std::string& path, const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;
    const auto begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

std::int64_t number(const std::string& text) {
  std::int64_t n = 0;
  std::istringstream(text) >> n;
  return n;
}

std::string huge_page_mode(const std::string& root) {
  const auto line = first_line(root + "/sys/kernel/mm/transparent_hugepage/enabled");
  const auto open = line.find('['), close = line.find(']');
  return open == std::string::npos || close == std::string::npos ? "unknown" : line.substr(open + 1, close - open - 1);
}

/// Number of CPUs in a list such as "0-3,8".
int count_cpus(const std::string& list) {
  int n = 0;
  std::istringstream in(list);
  for (std::string part; std::getline(in, part, ',');) {
    const auto dash = part.find('-');
    n += dash == std::string::npos ? 1 : static_cast<int>(number(part.substr(dash + 1)) - number(part)) + 1;
  }
  return std::max(n, 1);
}

std::vector<CacheLevel> data_caches(const std::string& root) {
  std::vector<CacheLevel> list;
  for (int i = 0; i < 8; ++i) {
    const std::string folder = root + "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(i) + "/";
    const auto size = first_line(folder + "size");
    const auto bytes = number(size) * (size.ends_with('M') ? 1 << 20 : 1 << 10);
    if (bytes <= 0 || first_line(folder + "type") == "Instruction") continue;
    list.push_back({static_cast<int>(number(first_line(folder + "level"))), bytes,
                    count_cpus(first_line(folder + "shared_cpu_list"))});
  }
  std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.level < b.level; });
  return list;
}

std::int64_t free_bytes(const char* path) {
  struct statvfs s{};
  return statvfs(path, &s) == 0 ? static_cast<std::int64_t>(s.f_bavail) * static_cast<std::int64_t>(s.f_frsize) : -1;
}

}  // namespace

Machine this_machine(const std::filesystem::path& root_folder) {
  const std::string root = root_folder == "/" ? "" : root_folder.string();
  Machine m;
  m.cpu = field(root + "/proc/cpuinfo", "model name");
  utsname name{};
  if (uname(&name) == 0) m.kernel = std::string(name.sysname) + " " + name.release;
  m.cpus_online = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  cpu_set_t set;
  m.cpus_allowed = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : m.cpus_online;
  m.cpu_quota = cgroup_cpus(root);
  m.isa = simd::isa_name(simd::active_isa());
  m.isa_best = simd::isa_name(simd::best_isa());
#if defined(__x86_64__)
  m.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  m.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
  m.avx512_bf16 = __builtin_cpu_supports("avx512bf16");
  m.avx512_vnni = __builtin_cpu_supports("avx512vnni");
  m.amx = simd::cpu_has_amx();
#endif
  m.caches = data_caches(root);
  for (const auto& c : m.caches) m.last_level_cache = std::max(m.last_level_cache, c.bytes);
  m.memory_total = number(field(root + "/proc/meminfo", "MemTotal")) * 1024;
  m.memory_available = number(field(root + "/proc/meminfo", "MemAvailable")) * 1024;
  m.memory_limit = cgroup_memory(root, m.memory_total);
  m.huge_pages = huge_page_mode(root);
  m.shm_free = free_bytes("/dev/shm");
  return m;
}

nlohmann::ordered_json identity(const Machine& m) {
  nlohmann::ordered_json j{
      {"cpu", m.cpu}, {"cpus", m.cpus_online}, {"isa", m.isa_best}, {"caches", nlohmann::ordered_json::array()}};
  for (const auto& c : m.caches) j["caches"].push_back({{"level", c.level}, {"bytes", c.bytes}, {"shared_by", c.cpus}});
  return j;
}

std::int64_t peak_rss_bytes() {
  // Not getrusage: its peak survives exec, so a child would report its parent's.
  if (const auto kib = number(field("/proc/self/status", "VmHWM")); kib > 0) return kib * 1024;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

std::int64_t free_disk_bytes(const std::string& folder) { return free_bytes(folder.c_str()); }

}  // namespace hpcdl::lab
