#include "tools/measure_roofs.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "hpcdl/graph.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/machine/machine.h"
#include "hpcdl/machine/remembered.h"
#include "hpcdl/machine/speed_of_light.h"
#include "hpcdl/ops/softmax/softmax.h"
#include "hpcdl/simd/isa.h"
#include "tools/probe/probe.h"

namespace hpcdl::lab {
namespace {

/// The same rate for everything, and one cache.
Roofs alike(double rate, const CacheRoof& cache) {
  Roofs r;
  r.f32 = r.bf16 = r.i8 = rate;
  r.memory_read = r.memory_copy = r.memory_write = r.memory_update = r.cache_read = rate;
  r.cache_bytes = 1, r.caches = {cache};
  return r;
}

TEST(roofs, are_remembered_and_a_damaged_file_is_measured_anew) {
  const io::TempFolder tmp;
  ::setenv("XDG_CACHE_HOME", tmp.path().c_str(), 1);
  Pool pool(1);
  const auto first = roofs(pool);
  for (const double x :
       {first.f32, first.bf16, first.i8, first.memory_read, first.memory_copy, first.cache_read, first.cache_bytes})
    EXPECT_GT(x, 0);
  ASSERT_TRUE(std::filesystem::exists(probe_file()));
  EXPECT_EQ(roofs(pool).f32, first.f32);
  ASSERT_EQ(first.caches.size(), this_machine().caches.size());
  ASSERT_EQ(roofs(pool).caches.size(), first.caches.size());
  for (const auto& c : first.caches)
    EXPECT_TRUE(c.read > 0 && c.copy > 0 && c.bytes > 0 && c.name.starts_with('L')) << c.name;
  EXPECT_GE(roofs(pool, Remember::best).f32, first.f32);
  io::write_file_atomic(probe_file(), "{\"f32\": ");
  EXPECT_GT(roofs(pool).f32, 0);
  ::setenv("XDG_CACHE_HOME", "/dev/null", 1);  // results cannot be stored
  EXPECT_GT(roofs(pool).f32, 0);
}

TEST(roofs, more_threads_than_cpus_have_the_roofs_of_all_cpus) {
  const io::TempFolder tmp;
  ::setenv("XDG_CACHE_HOME", tmp.path().c_str(), 1);
  const int cpus = this_machine().cpus_allowed;
  Pool all(cpus), many(3 * cpus);
  const auto first = roofs(all);
  EXPECT_EQ(roofs(many).f32, first.f32);
  EXPECT_EQ(roofs(many).memory_copy, first.memory_copy);
}

TEST(roofs, light_takes_the_slower_of_arithmetic_and_memory) {
  Graph g({.inference = true});
  const Var x = g.input("x", {{64, 1024}, DType::f32});
  g.keep(softmax(softmax(x)));
  const Program p = g.finish().program;
  ASSERT_EQ(p.records.size(), 2u);
  const Cost cost = p.records[0].cost;
  Roofs r{.f32 = 1e9,
          .bf16 = 4e9,
          .i8 = 8e9,
          .memory_read = 1e15,
          .memory_copy = 1e15,
          .cache_read = 1e15,
          .cache_bytes = 1 << 20,
          .caches = {}};
  EXPECT_DOUBLE_EQ(light(p, r).seconds, 2 * cost.operations / 1e9);
  r.f32 = 1e20;
  r.cache_read = 2e9, r.memory_read = 1e9, r.memory_copy = 1.5e9;
  EXPECT_DOUBLE_EQ(light(p, r).seconds, 2 * cost.bytes() / 2e9) << "the working set fits the cache";
  r.cache_bytes = 1000;
  EXPECT_DOUBLE_EQ(light(p, r).seconds, 2 * cost.bytes() / 1.5e9);
}

TEST(remembered, one_file_holds_all_thread_counts_and_what_the_probe_wrote) {
  const io::TempFolder tmp;
  ::setenv("XDG_CACHE_HOME", tmp.path().c_str(), 1);
  Pool one(1), two(2);
  const auto r1 = roofs(one);
  auto file = read_remembered();
  file["bandwidth"] = {1, 2};
  write_remembered(file);
  const auto r2 = roofs(two);
  EXPECT_EQ(roofs(one).f32, r1.f32);
  EXPECT_EQ(roofs(two).f32, r2.f32);
  EXPECT_EQ(read_remembered().at("bandwidth").size(), 2u);
  EXPECT_EQ(read_remembered().at("roofs").size(), 2u);
}

TEST(remembered, what_is_damaged_or_of_another_machine_does_not_count) {
  const io::TempFolder tmp;
  ::setenv("XDG_CACHE_HOME", tmp.path().c_str(), 1);
  nlohmann::ordered_json file;
  const std::string isa(simd::isa_name(simd::active_isa()));
  const Roofs r = alike(1, {"L1", 1, 1, 1});
  put_roofs(file, isa, 1, r);
  const auto good = file.dump();
  write_remembered(file);
  ASSERT_TRUE(find_roofs(read_remembered(), isa, 1));
  Pool pool(1);
  EXPECT_EQ(roofs(pool).f32, 1);
  for (const char* bad :
       {"", "{", "[]", "null", "{}", "\xff\xfe", R"({"machine":1,"roofs":[]})", R"({"roofs":{},"machine":{}})"}) {
    io::write_file_atomic(probe_file(), bad);
    EXPECT_TRUE(read_remembered().empty()) << bad;
  }
  for (const auto& [field, value] : {std::pair<const char*, nlohmann::ordered_json>{"f32", -1},
                                     {"f32", "fast"},
                                     {"f32", nullptr},
                                     {"caches", 3},
                                     {"caches", {1}},
                                     {"memory_read", 0}}) {
    auto j = nlohmann::ordered_json::parse(good);
    j["roofs"][0][field] = value;
    EXPECT_FALSE(find_roofs(j, isa, 1)) << field << value;
  }
  for (const auto& [field, value] :
       {std::pair<const char*, nlohmann::ordered_json>{"isa", 5}, {"isa", nullptr}, {"threads", "1"}}) {
    auto j = nlohmann::ordered_json::parse(good);
    j["roofs"][0][field] = value;
    EXPECT_FALSE(find_roofs(j, isa, 1)) << field << value;
    put_roofs(j, isa, 1, r);
    EXPECT_TRUE(find_roofs(j, isa, 1)) << field << value << ": other entries may exist as well";
  }
  auto other = nlohmann::ordered_json::parse(good);
  other["machine"]["cpu"] = "another";
  write_remembered(other);
  EXPECT_TRUE(read_remembered().empty());
  EXPECT_GT(roofs(pool).f32, 1e6) << "measured";
  EXPECT_TRUE(find_roofs(read_remembered(), isa, 1)) << "the result must be stored";
}

TEST(remembered, a_gpu_is_known_by_name_driver_and_uuid) {
  const io::TempFolder tmp;
  ::setenv("XDG_CACHE_HOME", tmp.path().c_str(), 1);
  Gpu gpu;
  gpu.name = "A GPU", gpu.uuid = "GPU-1", gpu.driver = "1.2";
  Roofs r = alike(1, {"L2", 1, 5, 1, 2});
  nlohmann::ordered_json file;
  file["gpu_roofs"] = "damaged";
  put_gpu_roofs(file, gpu, r);
  write_remembered(file);
  file = read_remembered();
  ASSERT_TRUE(find_gpu_roofs(file, gpu));
  EXPECT_EQ(find_gpu_roofs(file, gpu)->caches[0].update, 2);
  Gpu other = gpu;
  other.uuid = "GPU-2";
  EXPECT_FALSE(find_gpu_roofs(file, other));
  r.bf16 = 9;
  nlohmann::ordered_json fresh;
  put_gpu_roofs(fresh, gpu, r);
  put_gpu_roofs(fresh, other, r);
  for (const auto& entry : file.at("gpu_roofs")) keep_gpu_roofs(fresh, entry);
  EXPECT_EQ(fresh.at("gpu_roofs").size(), 2u);
  EXPECT_EQ(find_gpu_roofs(fresh, gpu)->bf16, 9) << "the higher of both";
  keep_gpu_roofs(fresh, {{"name", "A GPU"}});
  EXPECT_EQ(fresh.at("gpu_roofs").size(), 2u) << "a damaged entry must not be added";
}

TEST(remembered, the_higher_of_each_is_the_roof) {
  Roofs a = alike(1, {"L1", 1, 5, 1});
  a.bf16 = 9;
  const Roofs b = alike(2, {"L1", 1, 2, 2});
  const auto best = best_of(a, b);
  EXPECT_EQ(best.f32, 2);
  EXPECT_EQ(best.bf16, 9);
  EXPECT_EQ(best.caches[0].read, 5);
  EXPECT_EQ(best.caches[0].copy, 2);
}

TEST(remembered, the_shortest_empty_record_is_the_floor) {
  Roofs a = alike(1, {"L1", 1, 1, 1}), b = a;
  a.launch = 3e-9, b.launch = 2e-9;
  EXPECT_EQ(best_of(a, b).launch, 2e-9);
  b.launch = 0;
  EXPECT_EQ(best_of(a, b).launch, 3e-9) << "0 means unknown";
  EXPECT_EQ(best_of(b, a).launch, 3e-9);
  nlohmann::ordered_json file;
  put_roofs(file, "avx2", 1, a);
  EXPECT_EQ(find_roofs(file, "avx2", 1)->launch, 3e-9);
  file["roofs"][0].erase("launch_seconds");
  EXPECT_FALSE(find_roofs(file, "avx2", 1)) << "written by a program that did not measure it";
}

TEST(remembered, networks_are_kept_by_device_ranks_and_hosts) {
  const io::TempFolder tmp;
  ::setenv("XDG_CACHE_HOME", tmp.path().c_str(), 1);
  nlohmann::ordered_json file;
  const std::string isa(simd::isa_name(simd::active_isa()));
  put_roofs(file, isa, 1, alike(1, {"L1", 1, 1, 1}));
  put_network(file, {"cpu", 2, 1, 5e9, 4e-6});
  put_network(file, {"cpu", 2, 1, 4e9, 3e-6});
  put_network(file, {"cpu", 2, 2, 1e9, 9e-6});
  put_network(file, {"cuda", 2, 1, 2e11, 8e-6});
  file["networks"].push_back("damaged");
  write_remembered(file);
  Pool pool(1);
  const auto r = roofs(pool);
  ASSERT_EQ(r.networks.size(), 2u) << "only CPU networks";
  ASSERT_TRUE(network_of(r, 2));
  EXPECT_EQ(network_of(r, 2)->bandwidth, 5e9) << "the fastest";
  EXPECT_EQ(network_of(r, 2)->latency, 3e-6) << "the better of each";
  EXPECT_FALSE(network_of(r, 4));
  EXPECT_EQ(find_networks(file, "cuda").size(), 1u);
}

}  // namespace
}  // namespace hpcdl::lab
