#include "hpcdl/program/bytes.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "hpcdl/core/error.h"
#include "hpcdl/graph.h"
#include "hpcdl/instance.h"
#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/ops/softmax/softmax.h"
#include "hpcdl/rng.h"

namespace hpcdl {
namespace {

/// y = softmax(x W^T + b) with gradients, W and b without memory.
Program small() {
  Graph g;
  const Var x = g.input("x", {{4, 8}, DType::f32});
  const Spec w{{16, 8}, DType::f32}, b{{16}, DType::f32};
  const Graph::Scope scope(g, "layer");
  const Var y = g.keep(softmax(linear(x, g.parameter("w", Tensor(nullptr, w), Tensor(nullptr, w)),
                                      g.parameter("b", Tensor(nullptr, b), Tensor(nullptr, b)))));
  g.backward(y, g.input("dy", y.spec()));
  return g.finish().program;
}

std::string error_of(const std::string& bytes) try {
  plan(program_of(bytes, "FILE"));
  return "no error";
} catch (const Error& e) {
  return e.what();
}

/// The bytes with a checksum that matches their current contents.
std::string summed(std::string bytes) {
  std::uint64_t h = 0xCBF29CE484222325u;
  for (std::size_t i = 0; i + sizeof h < bytes.size(); ++i)
    h = (h ^ static_cast<unsigned char>(bytes[i])) * 0x100000001B3u;
  std::memcpy(bytes.data() + bytes.size() - sizeof h, &h, sizeof h);
  return bytes;
}

TEST(program_bytes, what_is_read_is_what_was_written) {
  const Program p = small();
  const auto bytes = to_bytes(p);
  const Program again = program_of(bytes, "FILE");
  EXPECT_EQ(to_bytes(again), bytes);
  EXPECT_EQ(digest(again), digest(p));
  EXPECT_EQ(to_bytes(small()), bytes) << "two recordings have different bytes";
  EXPECT_EQ(again.records.back().op, p.records.back().op);
  EXPECT_EQ(again.scopes[again.records[0].scope], "layer");
}

TEST(program_bytes, costs_are_not_in_the_digest_and_everything_else_is) {
  Program p = small();
  const auto first = digest(p);
  p.records[0].cost.operations += 1, p.records[0].cost.unit = Unit::i8, p.records[0].cost.wire = 8;
  EXPECT_EQ(digest(p), first);
  for (const Numerics& other :
       {Numerics{.products = F32Products::tf32}, Numerics{.atomic_sums = true}, Numerics{.row_invariant = true}}) {
    p.numerics = other;
    EXPECT_NE(digest(p), first);
    EXPECT_EQ(program_of(to_bytes(p), "FILE").numerics, other);
  }
  p.numerics = {};
  EXPECT_EQ(digest(p), first);
  p.slots[1].name += "x";
  EXPECT_NE(digest(p), first);
}

TEST(program_bytes, a_program_that_was_read_runs_to_the_same_bits) {
  OwnedTensor w({{16, 8}, DType::f32}), dw(w.tensor.spec()), b({{16}, DType::f32}), db(b.tensor.spec());
  for (std::int64_t i = 0; i < 128; ++i) w.tensor.ptr<float>()[i] = static_cast<float>(i % 13) - 6;
  Bindings bindings;
  bindings.bind("w", w.tensor), bindings.bind("w.grad", dw.tensor);
  bindings.bind("b", b.tensor), bindings.bind("b.grad", db.tensor);
  Pool pool(2);
  Stream s(pool);
  const auto gradient = [&](const Program& p) {
    const Instance exe(planned(p), bindings);
    for (std::size_t i = 0; i < p.slots.size(); ++i)
      if (p.slots[i].kind == SlotKind::input)
        for (std::int64_t k = 0; k < p.slots[i].spec.size(); ++k)
          reinterpret_cast<float*>(exe.arena()->data() + exe.plan().offset[i])[k] = static_cast<float>(k % 7) / 8;
    exe.run(s);
    return std::string(dw.tensor.ptr<char>(), static_cast<std::size_t>(dw.tensor.bytes()));
  };
  const Program p = small();
  const auto want = gradient(p);
  EXPECT_NE(want, std::string(want.size(), '\0'));
  std::memset(dw.tensor.data(), 0, want.size());
  EXPECT_EQ(gradient(program_of(to_bytes(p), "FILE")), want);
}

TEST(program_bytes, what_is_not_bound_is_named) {
  try {
    const Instance exe(planned(small()), Bindings());
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("\"w\" must be bound to a contiguous"), std::string::npos) << e.what();
  }
}

TEST(program_bytes, damage_is_refused) {
  const auto bytes = to_bytes(small());
  for (std::size_t i = 0; i < bytes.size(); i += 1 + i / 50) {
    auto other = bytes;
    other[i] = static_cast<char>(other[i] ^ 16);
    EXPECT_TRUE(error_of(other).starts_with("[program] FILE: ")) << i << ": " << error_of(other);
    EXPECT_TRUE(error_of(bytes.substr(0, i)).starts_with("[program] FILE: ")) << i;
  }
  EXPECT_NE(error_of(bytes + "x"), "no error");
}

/// Bytes changed deliberately, including the checksum: an error, or a program that stays within its own tables.
TEST(program_bytes, whatever_is_read_can_be_planned) {
  const auto bytes = to_bytes(small());
  const Rng rng{3, 3};
  std::uint64_t draw = 0;
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    auto other = bytes;
    for (auto n = 1 + rng.below(draw++, 3); n-- > 0;) {
      const auto at = rng.below(draw++, other.size());
      other[at] = static_cast<char>(rng.below(draw++, 256));
    }
    if (rng.below(draw++, 8) == 0) other.resize(20 + rng.below(draw++, other.size() - 20));
    const auto error = error_of(summed(other));
    refused += error != "no error";
    EXPECT_TRUE(error == "no error" || error.starts_with("[program] FILE: ")) << error;
  }
  EXPECT_GT(refused, 1000);
}

TEST(program_bytes, costs_come_back_and_those_without_units_are_refused_by_format) {
  Program p = small();
  p.records[0].cost = {1, Unit::i8, 2, 3, 4, 5};
  const auto bytes = to_bytes(p);
  const Cost c = program_of(bytes, "FILE").records[0].cost;
  EXPECT_EQ(c.operations, 1);
  EXPECT_EQ(c.unit, Unit::i8);
  EXPECT_EQ(c.bytes(), 2 + 3 + 2 * 4);
  EXPECT_EQ(c.footprint(), 2 + 3 + 4);
  EXPECT_EQ(c.wire, 5);
  auto before = bytes;
  before[8] = 2;  // after the magic
  EXPECT_NE(error_of(summed(before)).find("it has format 2, this build reads format 5"), std::string::npos)
      << error_of(summed(before));
}

TEST(program_bytes, ops_of_another_build_are_refused_by_name) {
  const auto bytes = to_bytes(small());
  const auto at = bytes.find("softmax");
  auto unknown = bytes, version = bytes;
  unknown[at] = 'S';
  EXPECT_NE(error_of(summed(unknown)).find("the op \"Softmax\", which this build does not know"), std::string::npos)
      << error_of(summed(unknown));
  version[at + 7 + 1 + 4] = 9;
  EXPECT_NE(error_of(summed(version)).find("version 9 of the op \"softmax\""), std::string::npos)
      << error_of(summed(version));
}

}  // namespace
}  // namespace hpcdl
