#include "hpcdl/machine/machine.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "hpcdl/io/temp_folder.h"

namespace hpcdl::lab {
namespace {

/// A tree of files that stands for /proc and /sys.
class FakeRoot {
 public:
  FakeRoot& file(const std::string& path, const std::string& text) {
    const auto full = tmp_.path() / path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
    return *this;
  }
  Machine machine() const { return this_machine(tmp_.path()); }

 private:
  io::TempFolder tmp_;
};

TEST(machine, knows_itself) {
  const auto m = this_machine();
  EXPECT_GT(m.cpus_online, 0);
  EXPECT_GT(m.memory_total, m.memory_available);
  EXPECT_FALSE(m.isa.empty());
  EXPECT_TRUE(m.kernel.starts_with("Linux ")) << m.kernel;
  EXPECT_GT(peak_rss_bytes(), 1 << 20);
  EXPECT_LT(peak_rss_bytes(), m.memory_total);
  EXPECT_EQ(free_disk_bytes("/proc/none"), -1);
}

TEST(machine, an_empty_system_is_unknown_and_no_error) {
  const auto m = FakeRoot().file("proc/empty", "").machine();
  EXPECT_EQ(m.cpu, "");
  EXPECT_EQ(m.cpu_quota, 0);
  EXPECT_EQ(m.memory_total, 0);
  EXPECT_TRUE(m.caches.empty());
  EXPECT_EQ(m.huge_pages, "unknown");
}

TEST(machine, reads_caches_cpu_and_huge_pages) {
  FakeRoot root;
  const std::string cpu0 = "sys/devices/system/cpu/cpu0/cache/index";
  root.file("proc/cpuinfo", "processor\t: 0\nmodel name\t: Fast CPU 9000\n")
      .file("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  root.file(cpu0 + "0/size", "32K\n")
      .file(cpu0 + "0/level", "1")
      .file(cpu0 + "0/type", "Data")
      .file(cpu0 + "0/shared_cpu_list", "0,64");
  root.file(cpu0 + "1/size", "64K\n")
      .file(cpu0 + "1/level", "1")
      .file(cpu0 + "1/type", "Instruction")
      .file(cpu0 + "1/shared_cpu_list", "0");
  root.file(cpu0 + "2/size", "16M\n")
      .file(cpu0 + "2/level", "3")
      .file(cpu0 + "2/type", "Unified")
      .file(cpu0 + "2/shared_cpu_list", "0-7,64-71");
  const auto m = root.machine();
  EXPECT_EQ(m.cpu, "Fast CPU 9000");
  EXPECT_EQ(m.huge_pages, "madvise");
  ASSERT_EQ(m.caches.size(), 2u);
  EXPECT_EQ(m.caches[0].bytes, 32 << 10);
  EXPECT_EQ(m.caches[0].cpus, 2);
  EXPECT_EQ(m.caches[1].level, 3);
  EXPECT_EQ(m.caches[1].bytes, 16 << 20);
  EXPECT_EQ(m.caches[1].cpus, 16);
  EXPECT_EQ(m.last_level_cache, 16 << 20);
  EXPECT_EQ(identity(m).at("caches")[1].at("shared_by"), 16);
}

TEST(machine, the_least_limit_of_all_groups_around_it_counts) {
  FakeRoot v2;
  v2.file("proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n")
      .file("proc/self/cgroup", "0::/slurm/job_7/step_0\n");
  v2.file("sys/fs/cgroup/slurm/job_7/step_0/cpu.max", "max 100000\n")
      .file("sys/fs/cgroup/slurm/job_7/cpu.max", "250000 100000\n")
      .file("sys/fs/cgroup/slurm/cpu.max", "800000 100000\n");
  v2.file("sys/fs/cgroup/slurm/job_7/memory.max", "1073741824\n").file("sys/fs/cgroup/slurm/memory.max", "max\n");
  EXPECT_EQ(v2.machine().cpu_quota, 2.5);
  EXPECT_EQ(v2.machine().memory_limit, 1 << 30);

  FakeRoot v1;
  v1.file("proc/meminfo", "MemTotal: 8388608 kB\n").file("proc/self/cgroup", "5:memory:/a\n3:cpu,cpuacct:/a/b\n");
  v1.file("sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us", "-1\n").file("sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us", "100000\n");
  v1.file("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "150000\n").file("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
  v1.file("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n")
      .file("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n");
  EXPECT_EQ(v1.machine().cpu_quota, 1.5);
  EXPECT_EQ(v1.machine().memory_limit, std::int64_t{2} << 30);

  // In a container the path is one of the host, and the group itself is mounted at the root.
  FakeRoot container;
  container.file("proc/self/cgroup", "0::/docker/0123\n").file("sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(container.machine().cpu_quota, 0.5);
  EXPECT_EQ(
      FakeRoot().file("proc/self/cgroup", "nonsense\n0::\n").file("sys/fs/cgroup/cpu.max", "x y\n").machine().cpu_quota,
      0);
}

}  // namespace
}  // namespace hpcdl::lab
