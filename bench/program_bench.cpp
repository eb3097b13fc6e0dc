// Host overhead of the program: nanoseconds to replay one record, milliseconds to plan many.

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "bench/emit.h"
#include "hpcdl/graph.h"
#include "hpcdl/instance.h"
#include "hpcdl/rng.h"
#include "tools/compare/protocol.h"

using namespace hpcdl;

namespace {

/// An op that does nothing, with the operands of a typical one: its cost is that of the walk and of the call.
struct Nothing {
  static constexpr std::string_view name = "nothing";
  struct Args {};
  static Spec infer(const Spec& a, const Spec&, const Spec&, const Args&) { return a; }
  static void forward(Stream&, Tensor y, View a, View b, View c, const Args&) {
    if (y.data() == a.data() && b.data() == c.data()) std::abort();
  }
};

Recording program_of(int records) {
  Graph g({.inference = true});
  const Rng rng{1, 1};
  std::uint64_t draw = 0;
  std::vector<Var> live{g.input("x", {{4, 64}, DType::f32})};
  const auto pick = [&] {
    const std::uint64_t reach = rng.below(draw++, 10) == 0 ? 400 : 4;
    return live[live.size() - std::min<std::uint64_t>(live.size(), 1 + rng.below(draw++, reach))];
  };
  for (int i = 0; i < records; ++i) {
    const Var a = pick(), b = pick(), c = pick();
    live.push_back(record<Nothing>({}, a, b, c));
  }
  return g.finish();
}

}  // namespace

int main() {
  constexpr int kRecords = 10'000;
  Pool pool;
  StepParams params;
  Stream stream(pool, &params);
  const Instance exe(program_of(kRecords));
  const Program& program = exe.program();
  lab::compare::HostEnvironment host(pool);
  const auto result =
      lab::compare::run({{"plan", [&] { plan(program); }}, {"replay", [&] { exe.run(stream); }, kRecords}}, host,
                        {.rounds = 21, .target = 0.02});
  const auto time = [&](const char* side, double scale) {
    return lab::compare::to_json(result.side(side).time(), scale);
  };
  bench::emit("program", {{"records", kRecords},
                          {"plan_ms", time("plan", 1e3)},
                          {"replay_ns_per_record", time("replay", 1e9)},
                          {"arena_over_live_bytes",
                           static_cast<double>(exe.plan().arena_bytes) / static_cast<double>(exe.plan().live_bytes)}});
}
