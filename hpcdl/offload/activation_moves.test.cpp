#include "hpcdl/offload/activation_moves.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "hpcdl/graph/move.h"
#include "hpcdl/instance.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/ops.h"
#include "hpcdl/program/bytes.h"
#include "hpcdl/program/edit.h"
#include "hpcdl/testing/devices.h"

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

/// Moves that can be recorded, but not run.
ActivationMoves described(bool on_disk, const ActivationOptions& options) {
  if (on_disk) return {std::make_unique<DiskStash>("/", true), options};
  return {std::make_unique<HostStash>(Device(), true), options};
}

TEST(activation_moves, take_the_same_share_of_every_layer) {
  const auto pass = pass_of(6);
  const auto all = plan_activations(pass.program, {.share = 1, .ahead = 1, .smallest = 1});
  ASSERT_GT(all.moved.count, 6);
  EXPECT_EQ(all.moved.bytes, all.moved.count * kSpec.bytes());
  EXPECT_GT(all.moved.kept, 0) << "backward begins with them";
  EXPECT_EQ(all.stash_bytes, all.moved.bytes) << "of whole pages";
  for (const auto& m : all.moves) {
    EXPECT_LT(m.last, m.free);
    EXPECT_LE(m.free, m.read);
    EXPECT_LT(m.read, m.first) << "an earlier part of backward computes meanwhile";
    EXPECT_NE(pass.program.scopes[pass.program.records[m.read].scope],
              pass.program.scopes[pass.program.records[m.first].scope]);
  }
  const auto half = plan_activations(pass.program, {.share = 0.5, .ahead = 1, .smallest = 1});
  EXPECT_LE(half.moved.bytes, (all.moved.bytes + all.moved.kept) / 2);
  EXPECT_EQ(half.moved.bytes + half.moved.kept, all.moved.bytes + all.moved.kept);
  std::map<std::string, std::pair<int, int>> of_layer;  // all moves, and those of half
  const auto layer = [&](const Moving& m) { return pass.program.scopes[pass.program.records[m.last].scope]; };
  for (const auto& m : all.moves) ++of_layer[layer(m)].first;
  for (const auto& m : half.moves) ++of_layer[layer(m)].second;
  for (const auto& [name, count] : of_layer) EXPECT_NEAR(2 * count.second, count.first, 2) << name;
}

TEST(activation_moves, keep_the_memory_of_a_tensor_while_it_is_copied) {
  const auto pass = pass_of(6);
  const auto at_once = plan_activations(pass.program, {.smallest = 1}),
             later = plan_activations(pass.program, {.behind = 1, .smallest = 1});
  ASSERT_EQ(later.moves.size(), at_once.moves.size());
  const auto scope = [&](std::size_t record) { return pass.program.scopes[pass.program.records[record].scope]; };
  const auto& first = later.moves.front();
  EXPECT_EQ(scope(first.last), "h.0");
  EXPECT_EQ(scope(first.free), "h.2") << "layer h.1 computes meanwhile";
  for (std::size_t i = 0; i < later.moves.size(); ++i) {
    EXPECT_GE(later.moves[i].free, at_once.moves[i].free);
    EXPECT_LE(later.moves[i].free, later.moves[i].read);
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
  for (const bool on_disk : {false, true})
    for (const bool recompute : {false, true}) {
      const auto pass = pass_of(12, recompute);
      auto moves = described(on_disk, {.smallest = 1});
      const auto moved = moves.moved(pass);
      EXPECT_EQ(to_bytes(strip(moved.program)), to_bytes(pass.program));
      EXPECT_EQ(on_disk ? io::disk_bytes(moved.program) : moved_bytes(moved.program), 2 * moves.moved().bytes);
      EXPECT_TRUE(moves.files().empty());
      // Of twelve layers, what two or three leave is in memory.
      EXPECT_LT(plan(moved.program).live_bytes, plan(pass.program).live_bytes / (recompute ? 1 : 2)) << recompute;
    }
}

/// What stays in memory does not grow with the number of layers.
TEST(activation_moves, with_recomputation_hold_as_much_of_any_model) {
  const auto live = [](int layers) {
    auto moves = described(false, {.behind = 1, .smallest = 1});
    return plan(moves.moved(pass_of(layers, true)).program).live_bytes;
  };
  EXPECT_EQ(live(8), live(32));
}

/// A pass computes the same bits with its moves, also after one that needs more room.
TEST(activation_moves, on_the_host_change_no_bit) {
  testing::on_every_device([](Stream& s) {
    ActivationMoves moves(std::make_unique<HostStash>(s.device(), false), {.behind = 1, .smallest = 1});
    for (const int layers : {4, 7, 5})
      for (const bool recompute : {false, true}) {
        const auto run = [&](Recording pass) {
          Instance exe(std::move(pass), nullptr, s.device());
          std::vector<float> x(static_cast<std::size_t>(kSpec.size()));
          for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 37) / 16;
          std::vector<float> gradient(x.size());
          const auto& slots = exe.program().slots;
          const auto named = [&](std::string_view name) {
            const auto at = std::ranges::find(slots, name, &Slot::name) - slots.begin();
            const auto byte = exe.plan().offset[static_cast<std::size_t>(at)];
            return Tensor(exe.arena()->data() + byte, kSpec, s.device());
          };
          for (const auto* name : {"x", "dy"}) copy(s, named(name), View(x.data(), kSpec));
          exe.run(s);
          copy(s, Tensor(gradient.data(), kSpec), named("x.grad"));
          return gradient;
        };
        EXPECT_EQ(run(moves.moved(pass_of(layers, recompute))), run(pass_of(layers, recompute)));
      }
  });
}

TEST(activation_moves, share_one_file) {
  const io::TempFolder tmp;
  if (io::lies_in_memory(tmp.path())) GTEST_SKIP() << "temporary files lie in memory: set TMPDIR to a disk";
  ActivationMoves moves(std::make_unique<DiskStash>(tmp.path(), false), {.smallest = 1});
  for (const int layers : {4, 3, 4}) moves.moved(pass_of(layers));
  EXPECT_EQ(moves.files().size(), 1u);
  moves.moved(pass_of(8));
  EXPECT_EQ(moves.files().size(), 2u);
}

}  // namespace
}  // namespace hpcdl::offload
