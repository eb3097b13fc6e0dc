#pragma once
// The limits of this process's control group and of all around it. `root`: where the files of the system are; empty but
// for tests.

#include <cstdint>
#include <string>

namespace hpcdl {

/// CPUs that its quota lets it use at a time; 0: no limit.
double cgroup_cpus(const std::string& root = "");
/// Bytes of memory, where they are fewer than `total`; 0: no limit.
std::int64_t cgroup_memory(const std::string& root, std::int64_t total);

}  // namespace hpcdl
