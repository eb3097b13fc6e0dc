#include "hpcdl/core/cgroup.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace hpcdl {
namespace {

std::string line_of(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

std::int64_t count_in(const std::string& text) {
  std::int64_t n = 0;
  std::istringstream(text) >> n;
  return n;
}

/// The path of this process in the hierarchy of `controller` ("" for version 2), from "7:cpu,cpuacct:/some/path".
std::string cgroup_path(const std::string& root, const std::string& controller) {
  std::ifstream in(root + "/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    std::istringstream list(line.substr(first + 1, second - first - 1));
    bool found = controller.empty() && second == first + 1;
    for (std::string name; !found && std::getline(list, name, ',');) found = name == controller;
    if (found) return line.substr(second + 1);
  }
  return "/";
}

/// The least positive f(folder) over this process's cgroup and its ancestors, because all their limits apply. 0: none.
template <class F>
double least_limit(const std::string& root, const std::string& mount, const std::string& controller, F&& f) {
  double least = 0;
  for (auto path = std::filesystem::path(cgroup_path(root, controller));; path = path.parent_path()) {
    if (const double x = f(root + mount + path.string() + "/"); x > 0 && (least == 0 || x < least)) least = x;
    if (path == path.parent_path()) return least;
  }
}

}  // namespace

double cgroup_cpus(const std::string& root) {
  const double v2 = least_limit(root, "/sys/fs/cgroup", "", [](const std::string& folder) {
    std::istringstream in(line_of(folder + "cpu.max"));
    std::string quota;
    double period = 0;
    return in >> quota >> period && quota != "max" && period > 0 ? std::atof(quota.c_str()) / period : 0;
  });
  return v2 > 0 ? v2 : least_limit(root, "/sys/fs/cgroup/cpu", "cpu", [](const std::string& folder) {
    const auto quota = count_in(line_of(folder + "cpu.cfs_quota_us")),
               period = count_in(line_of(folder + "cpu.cfs_period_us"));
    return quota > 0 && period > 0 ? static_cast<double>(quota) / static_cast<double>(period) : 0;
  });
}

std::int64_t cgroup_memory(const std::string& root, std::int64_t total) {
  const auto limit = [&](const std::string& file) {
    const auto n = count_in(file);
    return n > 0 && n < total ? static_cast<double>(n) : 0;
  };
  const double v2 = least_limit(root, "/sys/fs/cgroup", "",
                                [&](const std::string& folder) { return limit(line_of(folder + "memory.max")); });
  return static_cast<std::int64_t>(
      v2 > 0 ? v2 : least_limit(root, "/sys/fs/cgroup/memory", "memory", [&](const std::string& folder) {
        return limit(line_of(folder + "memory.limit_in_bytes"));
      }));
}

}  // namespace hpcdl
