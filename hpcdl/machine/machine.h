#pragma once
// Facts about the machine of this process, as far as the system reports them.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace hpcdl::lab {

/// One level of the data caches.
struct CacheLevel {
  int level = 0;
  std::int64_t bytes = 0;  // of one instance
  int cpus = 1;            // that share an instance
};

struct Machine {
  std::string cpu;       // model name
  std::string kernel;    // "Linux 6.1.0"
  int cpus_online = 0;   // of the machine
  int cpus_allowed = 0;  // affinity mask
  double cpu_quota = 0;  // least of this cgroup and its ancestors, in CPUs; 0: none
  std::string isa;       // the instruction set kernels use
  std::string isa_best;  // the best one the CPU has
  bool avx2 = false, avx512 = false, avx512_bf16 = false, avx512_vnni = false, amx = false;
  std::vector<CacheLevel> caches;     // innermost first; empty: unknown
  std::int64_t last_level_cache = 0;  // bytes; 0: unknown
  std::int64_t memory_total = 0, memory_available = 0;
  std::int64_t memory_limit = 0;  // the same of memory; 0: none
  std::string huge_pages;         // "always", "madvise", "never", or "unknown"
  std::int64_t shm_free = -1;     // /dev/shm; -1: missing
};

/// `root` is a prefix of /proc and /sys, for tests.
Machine this_machine(const std::filesystem::path& root = "/");

/// Identifies the machine: measurements of one machine are not used on another.
nlohmann::ordered_json identity(const Machine& m);

/// Largest resident set so far, bytes.
std::int64_t peak_rss_bytes();
std::int64_t free_disk_bytes(const std::string& folder);  // -1: unknown

}  // namespace hpcdl::lab
