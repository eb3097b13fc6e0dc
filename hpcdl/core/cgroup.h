#pragma once
// The limits of this process's control group and of its ancestors. `root`: prefix of the files of the system; empty
// except in tests.

#include <cstdint>
#include <string>

namespace hpcdl {

/// CPUs that its quota lets it use at a time; 0: no limit.
double cgroup_cpus(const std::string& root = "");
/// Bytes of memory, if they are fewer than `total`; 0: no limit.
std::int64_t cgroup_memory(const std::string& root, std::int64_t total);

}  // namespace hpcdl
