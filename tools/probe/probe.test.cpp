#include "tools/probe/probe.h"

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "hpcdl/io/temp_folder.h"
#include "hpcdl/machine/remembered.h"
#include "hpcdl/simd/isa.h"
#include "tools/probe/bound.h"
#include "tools/probe/parts.h"
#include "tools/probe/sweeps.h"

namespace hpcdl::lab {
namespace {

constexpr std::int64_t kKiB = 1024, kMiB = 1 << 20;

Figure figure(double x) { return {x, x / 2, 2 * x, 5}; }

Machine two_cores() {
  Machine m;
  m.cpu = "Some <CPU>", m.isa = m.isa_best = "avx2", m.kernel = "Linux 1.2";
  m.cpus_online = m.cpus_allowed = 2, m.memory_total = m.memory_available = 8192 * kMiB;
  m.caches = {{1, 32 * kKiB, 1}, {2, kMiB, 1}, {3, 16 * kMiB, 2}};
  return m;
}

/// Every rate equals its working set, so that a figure in the wrong place is detected.
Probe example() {
  Probe p;
  p.machine = two_cores(), p.isa = "avx2", p.date = "2026-01-02T03:04:05Z";
  for (const int t : {1, 2}) {
    list_bandwidth(p.machine, t, p.bandwidth);
    list_stairs(p.machine, t, 1, 1e9, p.stairs);
    list_peaks(simd::IsaKind::avx2, {"f32", "bf16", "i8", "f64"}, t, p.peaks);
    p.launch.push_back({t, figure(1e-6), figure(2e-5)});
  }
  for (auto& b : p.bandwidth) b.rate = figure(b.bytes_per_thread);
  for (auto& b : p.stairs) b.rate = figure(1e12 / b.bytes_per_thread);
  double x = 1e9;
  for (auto& k : p.peaks) k.rate = figure(x += 1e9);
  for (const int t : {1, 2}) {
    p.roofs.push_back({t, roofs_of(p, "avx2", t)});
    p.roofs.back().roofs.memory_write = p.roofs.back().roofs.memory_update = 1e9;
  }
  return p;
}

TEST(figure, is_the_median_and_the_range_of_the_rounds) {
  EXPECT_FALSE(figure_of({}).measured());
  const auto odd = figure_of({5, 1, 3}), even = figure_of({4, 1, 2, 9});
  EXPECT_EQ(odd.median, 3);
  EXPECT_EQ(odd.min, 1);
  EXPECT_EQ(odd.max, 5);
  EXPECT_EQ(odd.rounds, 3);
  EXPECT_EQ(even.median, 3);
  EXPECT_EQ(even.spread(), 8.0 / 3);
}

TEST(rounds, take_every_quantity_in_turn_and_do_not_count_the_first) {
  Figure a, b, refused;
  int calls_a = 0, calls_b = 0, most_apart = 0;
  Rounds rounds;
  rounds.add("a", a, [&] {
    return most_apart = std::max(most_apart, std::abs(calls_a - calls_b)), static_cast<double>(++calls_a);
  });
  rounds.add("b", b, [&] { return static_cast<double>(++calls_b * 10); });
  rounds.add("refused", refused, [] { return -1.0; });
  double last = 0;
  rounds.run(4, 4, 0, [&](std::string_view, double done) {
    EXPECT_GE(done, last);
    EXPECT_LE(done, 1);
    last = done;
  });
  EXPECT_EQ(calls_a, 5);
  EXPECT_EQ(a.rounds, 4);
  EXPECT_EQ(a.min, 2);
  EXPECT_EQ(a.max, 5);
  EXPECT_EQ(b.min, 20);
  EXPECT_LE(most_apart, 1) << "interleaved";
  EXPECT_FALSE(refused.measured());
}

TEST(rate, counts_the_reported_work_and_warms_up_before_each_sample) {
  std::vector<std::int64_t> calls;
  Rate rate(
      [&](std::int64_t n) {
        calls.push_back(n);
        std::this_thread::sleep_for(std::chrono::milliseconds(n));
        return static_cast<double>(n);
      },
      4e-3, 2);
  EXPECT_LT(rate(), 1001) << "a unit of work takes at least a millisecond";
  ASSERT_GE(calls.size(), 2u);
  EXPECT_EQ(calls[calls.size() - 2], 2);
  EXPECT_GE(calls.back(), 1);
}

TEST(sweeps, stay_within_their_level_and_name_their_bytes) {
  const auto m = two_cores();
  for (const int t : {1, 2}) {
    for (std::size_t i = 0; i < m.caches.size(); ++i) {
      const auto bytes = bytes_within(m.caches, i, t);
      EXPECT_LE(bytes * sharers(m.caches[i], t), m.caches[i].bytes) << i;
      if (i > 0) {
        EXPECT_GT(bytes, m.caches[i - 1].bytes) << i;
      }
    }
    EXPECT_GT(t * bytes_beyond(m, t), 3 * m.caches.back().bytes);
  }
  auto poor = m;
  poor.memory_limit = 64 * kMiB;
  EXPECT_LE(bytes_beyond(poor, 1), 16 * kMiB);
  poor.memory_limit = 8 * kMiB;  // less than its caches
  std::vector<Bandwidth> list;
  for (const int t : {1, 2}) list_bandwidth(poor, t, list);
  for (const auto& b : list) EXPECT_LE(b.threads * b.bytes_per_thread, 2 * kMiB) << b.level;

  Pool pool(2);
  SweepMemory memory(pool, kMiB);
  Pool one(1);
  for (Pool* p : {&pool, &one})
    for (const auto s : {cpu::Sweep::read, cpu::Sweep::copy, cpu::Sweep::copy_streaming, cpu::Sweep::triad,
                         cpu::Sweep::triad_streaming})
      EXPECT_EQ(memory.sweep(*p, s, 384 * 4 * 100, 3), 384.0 * 4 * 100 * 3 * p->threads()) << sweep_name(s);
}

TEST(bound, puts_everything_back) {
  const auto before = allowed_cpus();
  Pool pool(2), one(1);
  {
    const BoundPools bound({&one, &pool});
    if (before.size() >= 2) {
      EXPECT_EQ(allowed_cpus().size(), 1u);
    }
  }
  EXPECT_EQ(allowed_cpus(), before);
  pool.run_on_each_thread([&](int) { EXPECT_EQ(allowed_cpus(), before); });
}

TEST(probe, roofs_are_the_best_rates_of_one_thread_count) {
  const auto p = example();
  const auto one = roofs_of(p, "avx2", 1), two = roofs_of(p, "avx2", 2);
  EXPECT_EQ(one.f32, 4e9);
  EXPECT_EQ(one.bf16, 6e9);
  EXPECT_EQ(one.i8, 8e9);
  EXPECT_EQ(two.f32, 12e9);
  auto tiles = p;
  for (auto& peak : tiles.peaks) peak.isa = "amx";
  EXPECT_EQ(roofs_of(tiles, "amx", 2).f32, 12e9);
  for (auto& peak : tiles.peaks)
    if (peak.dtype == "bf16") peak.rate.max = 6 * 13e9;
  EXPECT_EQ(roofs_of(tiles, "amx", 2).f32, 13e9);  // six products of parts
  ASSERT_EQ(two.caches.size(), 3u);
  EXPECT_EQ(one.caches[0].bytes, 32.0 * kKiB);
  EXPECT_EQ(two.caches[0].bytes, 64.0 * kKiB);
  EXPECT_EQ(two.caches[2].bytes, 16.0 * kMiB);
  EXPECT_EQ(two.caches[1].read, 2.0 * static_cast<double>(bytes_within(p.machine.caches, 1, 2)));
  EXPECT_EQ(two.cache_read, two.caches[2].read);
  EXPECT_EQ(two.cache_bytes, two.caches[2].bytes);
  EXPECT_EQ(one.memory_read, 2.0 * static_cast<double>(bytes_beyond(p.machine, 1)));
}

TEST(probe, json_holds_the_machine_every_figure_and_null_for_what_was_not_measured) {
  auto p = example();
  const auto j = to_json(p);
  EXPECT_EQ(j.at("machine").at("cpu"), "Some <CPU>");
  EXPECT_EQ(j.at("bandwidth").size(), 40u);
  EXPECT_EQ(j.at("bandwidth")[0].at("bytes_per_second").at("rounds"), 5);
  EXPECT_TRUE(j.at("disk").is_null());
  EXPECT_TRUE(j.at("replay_per_record").at("nothing").is_null());
  EXPECT_TRUE(j.at("gpus").is_array() && j.at("gpus").empty());
  ASSERT_TRUE(find_roofs(j, "avx2", 2));
  EXPECT_EQ(find_roofs(j, "avx2", 2)->f32, 12e9);
  EXPECT_FALSE(find_roofs(j, "avx512", 2));
}

TEST(probe, a_gpu_has_its_place_in_text_and_json) {
  auto p = example();
  EXPECT_NE(to_text(p).find("no GPU found"), std::string::npos);
  Gpu g;
  g.name = "A GPU", g.l2_bytes = 5e7;
  g.bandwidth = {{"memory", "copy", 1e9, figure(3e12)},
                 {"memory", "copy engine", 1e9, figure(2e12)},
                 {"L2", "read", 1e7, figure(5e12)},
                 {"shared", "read", 0, figure(3e13)}};
  g.peaks = {{"wgmma", "bf16", 1, figure(9e14)},
             {"mma", "bf16", 1, figure(5e14)},
             {"wgmma", "tf32", 1, figure(3e14)},
             {"cuda", "f32", 1, figure(6e13)}};
  g.replay_node = figure(5e-7);
  p.gpus.push_back(g);
  p.gpu_links.push_back({0, 1, "nvlink", figure(4e11), {}});
  const auto text = to_text(p);
  for (const char* part : {"A GPU", "3000", "wgmma", "bf16", "900", "nvlink      to GPU 1"})
    EXPECT_NE(text.find(part), std::string::npos) << part << text;
  EXPECT_EQ(text.find("no GPU found"), std::string::npos);
  EXPECT_EQ(to_json(p).at("gpus")[0].at("peaks")[0].at("operations_per_second").at("median"), 9e14);
  const Roofs r = roofs_of(g);
  EXPECT_EQ(r.bf16, 2 * 9e14);
  EXPECT_EQ(r.f32, 2 * 1e14) << "three tf32 products are faster than plain f32";
  EXPECT_EQ(r.tf32, 2 * 3e14);
  EXPECT_EQ(r.launch, g.replay_node.min);
  EXPECT_EQ(r.memory_copy, 2 * 3e12);
  ASSERT_EQ(r.caches.size(), 1u) << "shared memory must not count as a cache: it keeps nothing between kernels";
  EXPECT_EQ(r.cache_read, 2 * 5e12);
  EXPECT_EQ(r.cache_bytes, 5e7);
}

TEST(probe, l2_keeps_what_a_repeated_sweep_finds) {
  Gpu g;
  g.l2_bytes = 60e6;
  g.bandwidth = {{"memory", "read", 1e9, figure(4e12)}, {"L2", "read", 2e7, figure(8e12)}};
  EXPECT_EQ(kept_by_l2(g), 60e6) << "no steps in the curve";
  // 30 MB stay in L2, and less of larger working sets.
  const auto rate = [](double bytes, double found) { return figure(bytes / (found / 8e12 + (bytes - found) / 4e12)); };
  g.stairs = {{"L2", "read", 20e6, rate(20e6, 20e6)},
              {"L2", "read", 40e6, rate(40e6, 30e6)},
              {"L2", "read", 90e6, rate(90e6, 5e6)}};
  EXPECT_NEAR(kept_by_l2(g), 30e6, 1);
  EXPECT_EQ(roofs_of(g).cache_bytes, kept_by_l2(g));
  auto p = example();
  p.gpus.push_back(g);
  EXPECT_NE(to_text(p).find("kept"), std::string::npos);
  g.stairs[1].rate = rate(40e6, 40e6);
  EXPECT_NEAR(kept_by_l2(g), 40e6, 1);
}

TEST(probe, text_is_a_table_that_fits) {
  const auto text = to_text(example());
  std::size_t longest = 0, at = 0;
  for (std::size_t end; (end = text.find('\n', at)) != std::string::npos; at = end + 1)
    longest = std::max(longest, end - at);
  EXPECT_LE(longest, 100u);
  for (const char* part : {"2 threads", "copy, streaming", "L3", "avx2", "launch"})
    EXPECT_NE(text.find(part), std::string::npos) << part;
}

TEST(probe, the_picture_names_its_levels_and_escapes_names) {
  const auto svg = to_svg(example());
  EXPECT_TRUE(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
  for (const char* part :
       {">L1<", ">L2<", ">L3<", ">memory<", "Some &lt;CPU&gt;", "streaming copy", "dashed: 1 thread"})
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  EXPECT_NE(to_svg(Probe{}).find("nothing was measured"), std::string::npos);
}

TEST(probe, the_picture_has_a_dark_face) {
  const auto svg = to_svg(example());
  EXPECT_NE(svg.find("@media(prefers-color-scheme:dark)"), std::string::npos);
  // Everything drawn takes its colours from the style, which contains both colour schemes.
  for (auto at = svg.find("</style>"); (at = svg.find('#', at)) != std::string::npos; ++at)
    EXPECT_EQ(svg.substr(at - 4, 9), "url(#fade") << svg.substr(at - 40, 60);
}

TEST(probe, no_line_of_the_picture_runs_through_the_names_of_the_levels) {
  const auto number_behind = [](const std::string& svg, const std::string& words, std::size_t from) {
    return std::stod(svg.substr(svg.find(words, from) + words.size()));
  };
  for (const double factor : {1.0, 1.3, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0, 6.5, 8.0}) {  // lines are at 1, 2, 5, 10, ...
    auto p = example();
    for (auto& s : p.stairs) s.rate.median *= factor;
    const auto svg = to_svg(p);
    const double size_of_level = number_behind(svg, "y=\"", svg.find("class=\"level\"")) + 16;
    for (auto at = svg.find("class=\"grid\""); at != std::string::npos; at = svg.find("class=\"grid\"", at + 1))
      EXPECT_GT(number_behind(svg, "y1=\"", at), size_of_level + 2) << factor;
  }
}

TEST(disk, is_measured_in_a_file_that_is_removed) {
  const io::TempFolder tmp;
  const auto d = probe_disk(tmp.path(), 8 * kMiB, 0, {});
  EXPECT_EQ(d.write.rounds, 2) << d.note;
  EXPECT_EQ(d.read_cold.rounds, 2);
  EXPECT_EQ(d.read_warm.rounds, 2);
  EXPECT_TRUE(d.read_direct.measured() != !d.direct_note.empty()) << "must be measured, or have a note with the reason";
  EXPECT_TRUE(std::filesystem::is_empty(tmp.path()));
  for (const char* nowhere : {"/proc/none", "/dev/null"}) {
    const auto none = probe_disk(nowhere, kMiB, 0, {});
    EXPECT_FALSE(none.write.measured());
    EXPECT_NE(none.note.find(nowhere), std::string::npos) << none.note;
  }
  EXPECT_NE(probe_disk(tmp.path(), std::int64_t{1} << 60, 0, {}).note.find("too little"), std::string::npos);
}

TEST(overheads, are_measured) {
  Pool one(1), two(2);
  std::vector<Launch> launch;
  std::vector<FirstTouch> touch;
  std::vector<CoreToCore> pairs;
  Figure empty, small;
  Rounds rounds;
  add_launch(rounds, launch, {&one, &two}, 1e-4);
  add_replay(rounds, one, empty, small, 1e-4);
  add_first_touch(rounds, touch, {&one});
  add_core_to_core(rounds, pairs);
  rounds.run(1, 1, 0);
  ASSERT_EQ(launch.size(), 2u);
  EXPECT_GT(launch[1].awake.median, 0);
  EXPECT_GT(launch[1].asleep.median, 0);
  EXPECT_FALSE(launch[0].asleep.measured());
  EXPECT_GT(empty.median, 0);
  EXPECT_GT(small.median, 0);
  ASSERT_EQ(touch.size(), 2u);
  EXPECT_GT(touch[1].rate.median, 0);
  EXPECT_EQ(pairs.empty(), allowed_cpus().size() < 2);
}

}  // namespace
}  // namespace hpcdl::lab
