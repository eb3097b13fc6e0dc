// Records that are inserted into a program, and taken out again.

#include "hpcdl/program/edit.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "hpcdl/core/error.h"
#include "hpcdl/graph.h"
#include "hpcdl/instance.h"
#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/ops/softmax/softmax.h"
#include "hpcdl/program/bytes.h"
#include "hpcdl/program/check.h"
#include "hpcdl/rng.h"

namespace hpcdl {
namespace {

/// Reads any number of tensors.
struct Looks {
  static constexpr std::string_view name = "edit_test.looks";
  struct RecordArgs : Bound {
    int number = 0;
  };
  static void run(Stream&, const Grad*, const void*) {}
  static void check_record(const RawRecord&) {}
};

Program recorded() {
  Graph g;
  const Var x = g.input("x", {{4, 8}, DType::f32});
  g.input("unused", {{3}, DType::f32});
  const Spec w{{16, 8}, DType::f32};
  const Graph::Scope scope(g, "layer");
  const Var y = g.keep(softmax(linear(x, g.parameter("w", Tensor(nullptr, w), Tensor(nullptr, w)))));
  g.backward(y, g.input("dy", y.spec()));
  return g.finish().program;
}

/// Up to 5 records at random places, which read slots of the program and new ones, and operands that move to new slots.
Program edited(Program p, std::uint64_t seed) {
  const Rng rng{seed, 2};
  std::uint64_t draw = 0;
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(rng.below(draw++, n)); };
  Edit edit(std::move(p), "look");
  for (auto n = below(6); n > 0; --n) {
    const Spec spec{{1 + static_cast<std::int64_t>(below(9))}, DType::f32};
    const int added = edit.add_slot({spec, SlotKind::state, "seen"});
    std::vector<Operand> operands{{added, 0, spec, contiguous_strides(spec.shape), Access::update}};
    const auto& slots = edit.program().slots;
    if (const auto slot = below(slots.size()); slots[slot].kind == SlotKind::state)
      operands.push_back({static_cast<int>(slot), 0, slots[slot].spec, contiguous_strides(slots[slot].spec.shape)});
    Looks::RecordArgs args;
    static_cast<Bound&>(args) = {"looker", &edit};
    args.number = static_cast<int>(n);
    Record record;
    record.scope = edit.add_scope("looks");
    edit.insert<Looks>(below(edit.program().records.size() + 1), record, operands, args);
  }
  for (auto n = below(4); n > 0; --n) {
    const auto operand = below(edit.program().edits.back().before.operands);
    const int slot = edit.program().operands[operand].slot;
    if (slot < 0 || edit.program().slots[static_cast<std::size_t>(slot)].kind != SlotKind::state) continue;
    const Spec old = edit.program().slots[static_cast<std::size_t>(slot)].spec;
    const auto begin = static_cast<std::int64_t>(below(9));
    edit.redirect(static_cast<std::uint32_t>(operand),
                  edit.add_slot({{{old.size() + begin}, old.dtype}, SlotKind::temp, "elsewhere"}), begin);
  }
  return edit.finish();
}

TEST(edits, move_operands_to_other_slots_and_back) {
  const Program p = recorded();
  const auto& o = p.operands[p.records[0].operands];
  Edit edit(p, "move");
  const Spec spec{{o.spec.size() + 100}, o.spec.dtype};
  const int other = edit.add_slot({spec, SlotKind::temp, "other"});
  edit.redirect(p.records[0].operands, other, 64);
  const Program q = edit.finish();
  const auto& moved = q.operands[p.records[0].operands];
  EXPECT_EQ(moved.slot, other);
  EXPECT_EQ(moved.offset, o.offset + 64);
  EXPECT_EQ(moved.spec, o.spec);
  EXPECT_EQ(plan(q).lifetime[static_cast<std::size_t>(other)].first, 0);
  EXPECT_EQ(to_bytes(strip(q)), to_bytes(p));
  EXPECT_EQ(to_bytes(program_of(to_bytes(q), "FILE")), to_bytes(q));
}

TEST(edits, can_be_taken_out_to_the_byte) {
  const Program p = recorded();
  const auto bytes = to_bytes(p);
  EXPECT_EQ(to_bytes(strip(p)), bytes) << "of a program that has none";
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const Program once = edited(p, seed), twice = edited(once, seed + 1000);
    EXPECT_EQ(to_bytes(strip(once)), bytes) << seed;
    EXPECT_EQ(to_bytes(strip(twice)), to_bytes(once)) << seed;
    EXPECT_EQ(to_bytes(strip(strip(twice))), bytes) << seed;
    const Program again = program_of(to_bytes(twice), "FILE");
    EXPECT_EQ(to_bytes(again), to_bytes(twice)) << seed;
    EXPECT_EQ(to_bytes(strip(strip(again))), bytes) << "a file says what was added";
    EXPECT_NE(digest(once), digest(p)) << "a program knows that it was edited";
  }
}

TEST(edits, insert_before_the_records_they_name_in_the_order_of_the_calls) {
  const Program p = recorded();
  Edit edit(p, "look");
  for (const int number : {0, 1, 2}) {
    Looks::RecordArgs args;
    args.number = number;
    edit.insert<Looks>(number == 1 ? 1 : 2, Record(), {}, args);
  }
  edit.insert<Looks>(p.records.size(), Record(), {}, {});
  const Program q = edit.finish();
  ASSERT_EQ(q.records.size(), p.records.size() + 4);
  std::vector<int> numbers;
  for (const auto& r : q.records)
    numbers.push_back(r.added_by ? reinterpret_cast<const Looks::RecordArgs*>(q.args.data() + r.args)->number : -1);
  std::vector<int> want(p.records.size() - 2, -1);
  want.insert(want.begin(), {-1, 1, -1, 0, 2});
  want.back() = -1, want.push_back(0);
  EXPECT_EQ(numbers, want);
  EXPECT_EQ(plan(q).arena_bytes, plan(p).arena_bytes);
}

/// Bytes that somebody changed on purpose: what remains without the edits is sound, too, or the file is refused.
TEST(edits, of_a_file_can_be_stripped_whatever_it_says) {
  const Rng rng{5, 3};
  std::uint64_t draw = 0;
  int refused = 0;
  const auto bytes = to_bytes(edited(recorded(), 4));
  for (int round = 0; round < 5000; ++round) {
    auto other = bytes;
    const bool at_the_end = round % 2 == 0;  // where the edits are
    const auto at = at_the_end ? other.size() - 9 - rng.below(draw++, 28) : 12 + rng.below(draw++, other.size() - 20);
    other[at] = static_cast<char>(rng.below(draw++, 256));
    std::uint64_t h = 0xCBF29CE484222325u;
    for (std::size_t i = 0; i + sizeof h < other.size(); ++i)
      h = (h ^ static_cast<unsigned char>(other[i])) * 0x100000001B3u;
    std::memcpy(other.data() + other.size() - sizeof h, &h, sizeof h);
    try {
      for (Program p = program_of(other, "FILE"); !p.edits.empty();) {
        p = strip(std::move(p));
        plan(p);
        to_bytes(p);
      }
    } catch (const Error& e) {
      EXPECT_TRUE(std::string(e.what()).starts_with("[program] FILE: ")) << e.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace hpcdl
