#include "hpcdl/ops/exchange/rotate.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/graph.h"
#include "hpcdl/instance.h"
#include "hpcdl/parallel/axis.h"
#include "hpcdl/program/bytes.h"
#include "hpcdl/testing/ranks.h"

namespace hpcdl {
namespace {

constexpr std::int64_t kSize = 3000;

struct Recorded {
  Recording recording;
  Var mine, theirs;
};

/// theirs = what the rank `distance` places before has, on a lane; `rounds` such steps, each from the result of the last.
Recorded record(const Axis& axis, int distance, int rounds, Lane lane) {
  Graph g;
  Recorded r;
  r.mine = r.theirs = g.input("mine", {{kSize}, DType::f32});
  for (int i = 0; i < rounds; ++i) {
    const Var next = g.temporary("theirs", r.mine.spec());
    const Graph::OnLane on(g, lane);
    emit_rotate(g, next.operand(), r.theirs.operand(), axis.with("numbers"), distance, Phase::forward);
    r.theirs = next;
  }
  g.keep(r.theirs);
  r.recording = g.finish();
  return r;
}

TEST(rotate, moves_tensors_around_the_ring) {
  for (const int n : {2, 3, 5, 8})
    testing::run_ranks(n, [&](const comm::Group& group) {
      const parallel::GroupAxis axis(group);
      Pool pool(1);
      Stream s(pool);
      for (int distance = 1; distance < n; ++distance)
        for (const auto lane : {Lane::compute, Lane::gather})
          for (const int rounds : {1, 4}) {
            auto r = record(axis.axis(), distance, rounds, lane);
            const Instance exe(std::move(r.recording));
            const Tensor mine = exe.tensor(r.mine);
            for (std::int64_t i = 0; i < kSize; ++i)
              mine.ptr<float>()[i] = static_cast<float>(group.rank() * 10'000 + i);
            const auto before = group.counters().wire_bytes;
            exe.run(s);
            const int from = (group.rank() + rounds * (n - distance)) % n;
            const Tensor theirs = exe.tensor(r.theirs);
            for (std::int64_t i = 0; i < kSize; ++i)
              ASSERT_EQ(theirs.ptr<float>()[i], static_cast<float>(from * 10'000 + i)) << distance << ' ' << rounds;
            EXPECT_EQ(static_cast<double>(group.counters().wire_bytes - before), wire_bytes(exe.program()));
            EXPECT_EQ(wire_bytes(exe.program()), static_cast<double>(rounds * kSize * 4));
          }
    });
}

/// Records from files: what cannot have been recorded is refused, before anything is sent.
TEST(rotate, of_a_file_is_checked) {
  const auto group = comm::Group::described(0, 4, "cp");
  const parallel::GroupAxis axis(group);
  const auto program = record(axis.axis(), 3, 1, Lane::gather).recording.program;
  const auto told = [](const Program& p) -> std::string {
    try {
      program_of(to_bytes(p), "test");
    } catch (const Error& e) {
      return e.what();
    }
    return "fine";
  };
  EXPECT_EQ(told(program), "fine");
  for (const int distance : {0, 4, -1, 1 << 30}) {
    auto p = program;
    auto& args = *reinterpret_cast<Rotate::RecordArgs*>(p.args.data() + p.records[0].args);
    args.distance = distance;
    EXPECT_NE(told(p).find("expected a distance below 4 ranks"), std::string::npos) << told(p);
  }
  auto p = program;
  p.operands[p.records[0].operands].spec.shape[0] = kSize - 1;
  EXPECT_NE(told(p).find("[rotate]"), std::string::npos) << told(p);
}

}  // namespace
}  // namespace hpcdl
