#include "hpcdl/offload/activation_moves.h"

#include <gtest/gtest.h>

#include <string>

#include "hpcdl/instance.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/ops.h"
#include "hpcdl/program/bytes.h"
#include "hpcdl/program/edit.h"

namespace hpcdl::offload {
namespace {

constexpr std::int64_t kRows = 64, kWidth = 48;
const Spec kSpec{{kRows, kWidth}, DType::f32};

/// A chain of layers h.0, h.1 and so on.
Recording pass_of(int layers, bool recompute = false) {
  Graph g;
  Var h = g.differentiable_input("x", kSpec);
  for (int i = 0; i < layers; ++i) {
    const Graph::Scope scope(g, "h." + std::to_string(i));
    const auto layer = [&] { return add(softmax(gelu(h)), h); };
    h = recompute ? g.checkpoint(layer) : layer();
  }
  g.backward(h, g.input("dy", kSpec));
  return g.finish();
}

TEST(activation_moves, take_out_what_waits_longest) {
  const auto pass = pass_of(6);
  const auto all = plan_activations(pass.program, {.share = 1, .ahead = 1, .smallest = 1});
  ASSERT_GT(all.moved.count, 6);
  EXPECT_EQ(all.moved.bytes, all.moved.count * kSpec.bytes());
  EXPECT_GT(all.moved.kept, 0) << "backward begins with them";
  EXPECT_EQ(all.file_bytes, all.moved.bytes) << "of whole pages";
  for (const auto& m : all.moves) {
    EXPECT_LT(m.last, m.read);
    EXPECT_LT(m.read, m.first) << "an earlier part of backward computes meanwhile";
    EXPECT_NE(pass.program.scopes[pass.program.records[m.read].scope],
              pass.program.scopes[pass.program.records[m.first].scope]);
  }
  const auto half = plan_activations(pass.program, {.share = 0.5, .ahead = 1, .smallest = 1});
  EXPECT_LE(half.moved.bytes, (all.moved.bytes + all.moved.kept) / 2);
  EXPECT_EQ(half.moved.bytes + half.moved.kept, all.moved.bytes + all.moved.kept);
  std::size_t shortest = pass.program.records.size();
  for (const auto& m : half.moves) shortest = std::min(shortest, m.first - m.last);
  for (const auto& m : all.moves) {
    const bool moves = std::ranges::any_of(half.moves, [&](const auto& h) { return h.slot == m.slot; });
    EXPECT_TRUE(moves || m.first - m.last <= shortest);
  }
}

TEST(activation_moves, leave_what_they_cannot_hide) {
  EXPECT_EQ(plan_activations(pass_of(1).program, {.smallest = 1}).moved.count, 0);
  EXPECT_EQ(plan_activations(pass_of(6).program, {.smallest = kSpec.bytes() + 1}).moved.count, 0);
  EXPECT_EQ(plan_activations(pass_of(6).program, {.share = 0}).moved.count, 0);
  Graph g({.inference = true});
  g.keep(softmax(softmax(g.input("x", kSpec))));
  EXPECT_EQ(plan_activations(g.finish().program, {.smallest = 1}).moved.count, 0);
}

TEST(activation_moves, with_recomputation_move_the_inputs_of_layers) {
  const auto plan = plan_activations(pass_of(6, true).program, {.smallest = 1});
  EXPECT_EQ(plan.moved.count, 3)
      << "of six layers, the first has an input of the caller, and backward begins with the last two";
}

TEST(activation_moves, can_be_undone_and_make_the_arena_smaller) {
  for (const bool recompute : {false, true}) {
    const auto pass = pass_of(12, recompute);
    ActivationMoves moves("/", {.smallest = 1}, true);
    const auto moved = moves.moved(pass);
    EXPECT_EQ(to_bytes(strip(moved.program)), to_bytes(pass.program));
    EXPECT_EQ(io::disk_bytes(moved.program), 2 * moves.moved().bytes);
    EXPECT_TRUE(moves.files().empty());
    // Of twelve layers, what two or three leave is in memory.
    EXPECT_LT(plan(moved.program).live_bytes, plan(pass.program).live_bytes / (recompute ? 1 : 2)) << recompute;
  }
}

TEST(activation_moves, share_one_file) {
  const io::TempFolder tmp;
  if (io::lies_in_memory(tmp.path())) GTEST_SKIP() << "temporary files lie in memory: set TMPDIR to a disk";
  ActivationMoves moves(tmp.path(), {.smallest = 1}, false);
  for (const int layers : {4, 3, 4}) moves.moved(pass_of(layers));
  EXPECT_EQ(moves.files().size(), 1u);
  moves.moved(pass_of(8));
  EXPECT_EQ(moves.files().size(), 2u);
}

}  // namespace
}  // namespace hpcdl::offload
