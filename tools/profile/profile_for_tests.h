#pragma once
// A made-up profile with known numbers: two layers of one record each, forward and backward, two threads.

#include <cstring>

#include "hpcdl/ops/exchange/exchange.h"
#include "tools/profile/recorder.h"
#include "tools/profile/report.h"

namespace hpcdl::lab {

/// Records "work" of scopes layers.0 and layers.1: 4000 flops (forward) and 8000 (backward), 100 bytes each.
inline ProgramFacts toy_facts() {
  ProgramFacts facts;
  auto& p = facts.program;
  p.scopes = {"", "layers.0.mlp", "layers.1.mlp"};
  p.slots = {{{{100}, DType::f32}, SlotKind::temp, "a"}, {{{100}, DType::f32}, SlotKind::temp, "b"}};
  for (const std::uint32_t i : {0u, 1u, 2u, 3u}) {
    Record r;
    r.op = "work";
    r.phase = i < 2 ? Phase::forward : Phase::backward;
    r.scope = i < 2 ? i + 1 : 4 - i;
    r.operands = i, r.operand_count = 1;
    r.cost = {.operations = i < 2 ? 4000.0 : 8000.0, .unit = Unit::f32, .writes = 100};
    p.records.push_back(r);
    p.operands.push_back({static_cast<int>(i % 2), 0, {{100}, DType::f32}, {{1}}, Access::write});
  }
  facts.plan = plan(p);
  facts.live_bytes = live_bytes(p, facts.plan);
  return facts;
}

/// Steps of 100 us: 10 of data, 5 idle, four records of 20 us, 5 idle. Thread 0 works all the time, thread 1 half of
/// it. Every second step is plain and takes 80 us.
inline Profile toy_profile(int steps) {
  Profile profile;
  profile.threads = 2;
  profile.programs.push_back(toy_facts());
  std::int64_t at = 1'000'000'000;
  for (int i = 0; i < 2 * steps; ++i) {
    StepTrace s;
    s.step = i;
    s.begin = at;
    s.recorded = i % 2 == 0;
    s.end = at + (s.recorded ? 100'000 : 80'000);
    if (s.recorded) {
      s.stages.push_back({train::Stage::data, at, at + 10'000});
      s.stages.push_back({train::Stage::pass, at + 12'000, at + 96'000});
      auto& run = s.runs.emplace_back();
      for (int r = 0; r < 4; ++r) {
        run.times.push_back({at + 15'000 + 20'000 * r, at + 35'000 + 20'000 * r});
        run.busy.push_back(20'000), run.busy.push_back(10'000);
      }
    }
    at = s.end + 3'000;
    profile.steps.push_back(std::move(s));
  }
  return profile;
}

/// The same on a GPU: each record is two kernels of 8 us with 2 us between them, and another 2 us before the next
/// record's; the step's tokens are copied before. The host queues a program in 3 us.
inline Profile toy_gpu_profile(int steps) {
  auto profile = toy_profile(steps);
  profile.how = "timed by hand";
  for (auto& s : profile.steps) {
    if (!s.recorded) continue;
    s.device.push_back({s.begin + 11'000, s.begin + 12'000, DeviceSpan::Kind::copy, "copy to the GPU"});
    auto& run = s.runs[0];
    run.host = {s.begin + 12'000, s.begin + 15'000};
    run.busy.clear();
    for (int r = 0; r < 4; ++r) {
      auto& t = run.times[static_cast<std::size_t>(r)];
      t.begin += 1'000, t.end -= 1'000;
      s.device.push_back({t.begin, t.begin + 8'000, DeviceSpan::Kind::kernel, "first", 0, r});
      s.device.push_back({t.end - 8'000, t.end, DeviceSpan::Kind::kernel, "second", 0, r});
    }
  }
  return profile;
}

/// Turns record `i` into the sum of its operand over an axis of two ranks. The program must not have arguments yet.
inline void reduce_over_two_ranks(Program& p, std::size_t i) {
  static_cast<void>(known_op<AllReduce>);
  AllReduce::Args args{Axis("dp", 2, nullptr)};
  clear_padding(args);
  p.args.resize(sizeof args);
  std::memcpy(p.args.data(), &args, sizeof args);
  p.records[i].op = AllReduce::name, p.records[i].backward = false;
}

/// 1 GFLOP/s and 1 GB/s: a record of 4000 flops takes 4 us at the speed of light.
inline Roofs toy_roofs() {
  Roofs r;
  r.f32 = 1e9, r.bf16 = 2e9, r.i8 = 4e9;
  r.memory_read = r.memory_copy = r.cache_read = 1e9;
  return r;
}

}  // namespace hpcdl::lab
