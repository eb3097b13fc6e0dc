#include "hpcdl/graph.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <numeric>

#include "hpcdl/graph/text.h"
#include "hpcdl/instance.h"
#include "hpcdl/ops/add/add.h"
#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/ops/softmax/softmax.h"
#include "hpcdl/rng.h"

namespace hpcdl {
namespace {

// Two small ops with gradients, so that these tests do not depend on real kernels.

struct Times {  // y = a * b, element-wise
  static constexpr std::string_view name = "times";
  struct Args {};
  static Spec infer(const Spec& a, const Spec&, const Args&) { return a; }
  static Cost cost(const Spec& a, const Spec&, const Args&) { return {.operations = double(a.size())}; }
  static void forward(Stream&, Tensor y, View a, View b, const Args&) {
    for_all(y, [&](auto i, float& v) { v = at(a, i) * at(b, i); });
  }
  static void backward(Stream&, Grad da, Grad db, View a, View b, View dy, const Args&) {
    if (da) for_all(da, [&](auto i, float& v) { v = (da.accumulate() ? v : 0) + at(dy, i) * at(b, i); });
    if (db) for_all(db, [&](auto i, float& v) { v = (db.accumulate() ? v : 0) + at(dy, i) * at(a, i); });
  }
  using Backward = Operands<dIn<0>, dIn<1>, In<0>, In<1>, dOut<0>>;

  /// Element i of a (rows, cols) view with any row stride.
  static float at(const View& t, std::int64_t i) {
    return t.ptr<float>()[i / t.cols() * t.row_stride() + i % t.cols()];
  }
  template <class F> static void for_all(const Tensor& t, F f) {
    for (std::int64_t i = 0; i < t.size(); ++i) f(i, t.ptr<float>()[i / t.cols() * t.row_stride() + i % t.cols()]);
  }
};

struct Sum {  // y = sum of all elements
  static constexpr std::string_view name = "sum";
  struct Args {};
  static Spec infer(const Spec& a, const Args&) { return {{1}, a.dtype}; }
  static Cost cost(const Spec& a, const Args&) { return {.operations = double(a.size())}; }
  static void forward(Stream&, Tensor y, View a, const Args&) {
    y.ptr<float>()[0] = 0;
    for (std::int64_t i = 0; i < a.size(); ++i) y.ptr<float>()[0] += Times::at(a, i);
  }
  static void backward(Stream&, Grad da, View dy, const Args&) {
    Times::for_all(da, [&](auto, float& v) { v = (da.accumulate() ? v : 0) + dy.ptr<float>()[0]; });
  }
  using Backward = Operands<dIn<0>, dOut<0>>;
};

Var times(const Var& a, const Var& b) { return record<Times>({}, a, b); }
Var sum(const Var& a) { return record<Sum>({}, a); }

struct Fixture : testing::Test {
  Pool pool{2};
  StepParams params;
  Stream stream{pool, &params};
  static Spec f32(Shape s) { return {s, DType::f32}; }

  static void set(const Tensor& t, std::initializer_list<float> v) { std::copy(v.begin(), v.end(), t.ptr<float>()); }
  static std::vector<float> values(const View& t) { return {t.ptr<float>(), t.ptr<float>() + t.size()}; }
};
using GraphTest = Fixture;
using PlanTest = Fixture;

TEST_F(GraphTest, first_contribution_overwrites_later_ones_add) {
  OwnedTensor w(f32({1, 3})), dw(f32({1, 3}));
  set(w.tensor, {1, 2, 3});
  set(dw.tensor, {NAN, NAN, NAN});
  Graph g;
  const Var p = g.parameter("w", w.tensor, dw.tensor);
  g.backward(sum(times(times(p, p), p)));  // w^3, p read twice in one record and once more
  Instance exe(g.finish());
  for (int i = 0; i < 2; ++i) {  // nothing accumulates from run to run
    exe.run(stream);
    EXPECT_EQ(values(dw.tensor), (std::vector<float>{3, 12, 27}));
  }
}

TEST_F(GraphTest, parameter_gradients_may_add_to_an_earlier_run) {
  OwnedTensor w(f32({1, 2})), dw(f32({1, 2}));
  set(w.tensor, {1, 2});
  const auto build = [&](Write first) {
    Graph g({.parameter_gradients = first});
    const Var p = g.parameter("w", w.tensor, dw.tensor);
    g.backward(sum(times(p, p)));
    return Instance(g.finish());
  };
  const auto first = build(Write::overwrite), more = build(Write::accumulate);
  first.run(stream);
  more.run(stream);
  more.run(stream);
  EXPECT_EQ(values(dw.tensor), (std::vector<float>{6, 12}));
}

TEST_F(GraphTest, slices_write_their_part_and_the_rest_is_zero) {
  OwnedTensor w(f32({2, 6})), dw(f32({2, 6}));
  std::iota(w.tensor.ptr<float>(), w.tensor.ptr<float>() + 12, 1.0f);
  Graph g;
  const Var p = g.parameter("w", w.tensor, dw.tensor);
  const Var a = g.slice(p, 0, 2), c = g.slice(p, 4, 2);
  g.backward(sum(times(a, c)));
  Instance exe(g.finish());
  exe.run(stream);
  EXPECT_EQ(values(dw.tensor), (std::vector<float>{5, 6, 0, 0, 1, 2, 11, 12, 0, 0, 7, 8}));
}

TEST_F(GraphTest, slice_and_whole_together) {
  OwnedTensor w(f32({1, 4})), dw(f32({1, 4}));
  set(w.tensor, {1, 2, 3, 4});
  for (bool whole_first : {true, false}) {
    Graph g;
    const Var p = g.parameter("w", w.tensor, dw.tensor);
    const Var a = whole_first ? sum(p) : sum(g.slice(p, 1, 2));
    const Var b = whole_first ? sum(g.slice(p, 1, 2)) : sum(p);
    g.backward(times(a, b));
    Instance(g.finish()).run(stream);
    EXPECT_EQ(values(dw.tensor), (std::vector<float>{5, 15, 15, 5}));
  }
}

/// A view as the list of elements of its base that it shows, computed without any strides.
struct Shown {
  Var v;
  std::vector<std::size_t> elements;

  Shown reshaped(Graph& g, const Shape& shape) const { return {g.reshape(v, shape), elements}; }
  Shown rows(Graph& g, std::int64_t begin, std::int64_t count) const {
    const auto each = std::ssize(elements) / v.shape()[0];
    return {g.rows(v, begin, count), {elements.begin() + begin * each, elements.begin() + (begin + count) * each}};
  }
  Shown columns(Graph& g, std::int64_t begin, std::int64_t count) const {
    Shown out{g.slice(v, begin, count), {}};
    for (std::size_t i = 0; i < elements.size(); ++i)
      if (const auto at = static_cast<std::int64_t>(i) % v.shape()[-1]; at >= begin && at < begin + count)
        out.elements.push_back(elements[i]);
    return out;
  }
};

/// Random windows of one tensor, also of reshaped views and of windows, whole or in checkpointed segments: sums of
/// products with constants and with each other. The gradients are small integers, so they are exact in any order.
TEST_F(GraphTest, gradients_of_windows_are_those_of_each_element) {
  const Rng rng{11, 4};
  std::uint64_t draw = 0;
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(rng.below(draw++, static_cast<std::uint64_t>(n)));
  };
  int windows_of_rows = 0, windows_of_both = 0;
  for (int round = 0; round < 400; ++round) {
    const Shape shape = round % 3 == 0   ? Shape{1 + below(6), 1 + below(7)}
                        : round % 3 == 1 ? Shape{1 + below(4), 1 + below(4), 1 + below(5)}
                                         : Shape{1 + below(20)};
    const bool made_by_op = round % 2 == 0;  // its gradient is temporary, and read by the op
    OwnedTensor w(f32(shape)), dw(f32(shape));
    const auto size = static_cast<std::size_t>(shape.size());
    std::vector<float> x(size), dx(size), value(size);
    for (std::size_t i = 0; i < size; ++i) w.tensor.ptr<float>()[i] = value[i] = static_cast<float>(below(7)) - 3;
    std::fill_n(dw.tensor.ptr<float>(), size, NAN);
    std::vector<OwnedTensor> constants;
    Graph g;
    const Var p = g.parameter("w", w.tensor, dw.tensor);
    Shown all{made_by_op ? times(p, p) : p, std::vector<std::size_t>(size)};
    std::iota(all.elements.begin(), all.elements.end(), std::size_t{0});
    for (std::size_t i = 0; i < size; ++i) x[i] = made_by_op ? value[i] * value[i] : value[i];
    Var loss;
    const auto add_loss = [&](const Var& term) { loss = loss ? add(loss, term) : term; };
    for (int n = 0; n < 3; ++n) {
      Shown s = all;
      bool rows = false, columns = false;
      for (int step = 0; step < 3; ++step) {
        const Shape now = s.v.shape();
        if (const auto what = below(4); what == 0 && now.rank() > 1) {
          Shape flat{now[0] * now[1]};
          for (int d = 2; d < now.rank(); ++d) flat.push_back(now[d]);
          if (View(nullptr, s.v.spec(), s.v.operand().strides, {}).is_contiguous()) s = s.reshaped(g, flat);
        } else if (what == 1 && now[-1] > 1 && (now.rank() == shape.rank() || s.elements.size() == size)) {
          const auto begin = below(now[-1]);
          const auto count = 1 + below(now[-1] - begin);
          if (now.rank() == shape.rank()) s = s.columns(g, begin, count), columns |= count < now[-1];
        } else if (what == 2 && (now.rank() == shape.rank() || shape[0] == 1)) {
          const auto begin = below(now[0]);
          const auto count = 1 + below(now[0] - begin);
          s = s.rows(g, begin, count), rows |= count < now[0];
        }
      }
      windows_of_rows += rows, windows_of_both += rows && columns;
      const auto count = s.elements.size();
      OwnedTensor& c = constants.emplace_back(s.v.spec());
      for (std::size_t i = 0; i < count; ++i) c.tensor.ptr<float>()[i] = static_cast<float>(below(5)) - 2;
      const Var constant = g.constant(fmt::format("c{}", n), c.tensor);
      const auto with_constant = [&] { return times(s.v, constant); };
      add_loss(sum(below(2) == 0 ? g.checkpoint(with_constant) : with_constant()));
      for (std::size_t i = 0; i < count; ++i) dx[s.elements[i]] += c.tensor.ptr<float>()[i];
      if (s.v.shape()[0] < 2) continue;
      const auto half = s.v.shape()[0] / 2, first = below(s.v.shape()[0] - half + 1);
      if (s.v.shape().rank() != shape.rank()) continue;
      const Shown a = s.rows(g, 0, half), b = s.rows(g, first, half);  // they may overlap within one record
      add_loss(sum(times(a.v, b.v)));
      for (std::size_t i = 0; i < a.elements.size(); ++i) {
        dx[a.elements[i]] += x[b.elements[i]];
        dx[b.elements[i]] += x[a.elements[i]];
      }
    }
    g.backward(loss);
    Instance(g.finish()).run(stream);
    if (made_by_op)
      for (std::size_t i = 0; i < size; ++i) dx[i] *= 2 * value[i];
    ASSERT_EQ(values(dw.tensor), dx) << "round " << round;
  }
  EXPECT_GT(windows_of_rows, 100);
  EXPECT_GT(windows_of_both, 30);
}

TEST_F(GraphTest, windows_that_are_no_block_of_their_tensor_are_refused) {
  Graph g;
  const Var x = g.differentiable_input("x", f32({4, 6, 5}));
  const Var flat = g.reshape(x, {24, 5}), wide = g.reshape(x, {4, 30});
  EXPECT_EQ(g.rows(flat, 6, 12).operand().offset, 30) << "two whole blocks of 6 rows";
  EXPECT_THROW(g.rows(flat, 6, 7), Error);
  EXPECT_THROW(g.rows(flat, 3, 6), Error);
  EXPECT_THROW(g.slice(wide, 5, 5), Error);
  EXPECT_THROW(g.rows(x, 3, 2), Error);
  EXPECT_THROW(g.rows(x, 0, 0), Error);
  EXPECT_THROW(g.rows(x, -1, 2), Error);
  EXPECT_EQ(g.rows(g.reshape(g.rows(x, 1, 1), {6, 5}), 2, 3).operand().offset, 40) << "rows of one block";
  EXPECT_EQ(g.reshape(g.rows(x, 1, 2), {12, 5}).shape(), (Shape{12, 5})) << "rows are contiguous";
}

/// An op that only renames rows: what it returns has a gradient of its own, which is as large as they are.
struct Renamed {
  static constexpr std::string_view name = "renamed";
  struct Args {};
  static Spec infer(const Spec& a, const Args&) { return a; }
  static void backward(Stream&, Grad da, View dy, const Args&) {
    Times::for_all(da, [&](auto i, float& v) { v = (da.accumulate() ? v : 0) + 10 * Times::at(dy, i); });
  }
  using Backward = Operands<dIn<0>, dOut<0>>;
};

TEST_F(GraphTest, rows_that_an_op_renames_have_their_own_gradient) {
  OwnedTensor w(f32({4, 2})), dw(f32({4, 2}));
  std::iota(w.tensor.ptr<float>(), w.tensor.ptr<float>() + 8, 1.0f);
  Graph g;
  const Var p = g.parameter("w", w.tensor, dw.tensor);
  const Var renamed = record<Renamed>({}, g.rows(p, 2, 2));
  g.backward(sum(times(renamed, g.rows(renamed, 0, 2))));
  Instance(g.finish()).run(stream);
  EXPECT_EQ(values(dw.tensor), (std::vector<float>{0, 0, 0, 0, 100, 120, 140, 160}));
}

TEST_F(GraphTest, reshape_of_a_slice_keeps_its_strides) {
  Graph g;
  const Var x = g.differentiable_input("x", f32({2, 6}));
  const Var v = g.reshape(g.slice(x, 2, 4), {2, 2, 2});
  EXPECT_EQ(v.operand().strides, (Shape{6, 2, 1}));
  EXPECT_EQ(v.operand().offset, 2);
  EXPECT_THROW(g.reshape(g.slice(x, 2, 4), {4, 2}), Error);
  EXPECT_THROW(g.slice(x, 4, 3), Error);
}

TEST_F(GraphTest, unused_parameter_gets_a_zero_gradient) {
  OwnedTensor w(f32({1, 2})), dw(f32({1, 2})), u(f32({1, 2})), du(f32({1, 2}));
  set(w.tensor, {1, 2});
  set(du.tensor, {7, 7});
  Graph g;
  const Var p = g.parameter("w", w.tensor, dw.tensor), q = g.parameter("u", u.tensor, du.tensor);
  times(q, q);  // dead end
  g.backward(sum(times(p, p)));
  Instance(g.finish()).run(stream);
  EXPECT_EQ(values(du.tensor), (std::vector<float>{0, 0}));
}

/// Of two programs that accumulate into the same gradients, one may not reach a parameter that it reads.
TEST_F(GraphTest, a_program_that_adds_nothing_leaves_an_earlier_gradient) {
  OwnedTensor w(f32({1, 2})), dw(f32({1, 2})), u(f32({1, 2})), du(f32({1, 2}));
  set(w.tensor, {1, 2});
  set(du.tensor, {7, 7});
  Graph g({.parameter_gradients = Write::accumulate});
  const Var p = g.parameter("w", w.tensor, dw.tensor), q = g.parameter("u", u.tensor, du.tensor);
  times(q, q);  // dead end
  g.backward(sum(times(p, p)));
  Instance(g.finish()).run(stream);
  EXPECT_EQ(values(du.tensor), (std::vector<float>{7, 7}));
  EXPECT_EQ(values(dw.tensor), (std::vector<float>{2, 4}));
}

struct Network {
  OwnedTensor w{Spec{{4, 8}, DType::f32}}, dw{Spec{{4, 8}, DType::f32}};
  Network() {
    for (int i = 0; i < 32; ++i) w.tensor.ptr<float>()[i] = Rng{3, 1}.uniform(static_cast<std::uint64_t>(i));
  }
  Var loss(Graph& g, bool recompute) const {
    const Var p = g.parameter("w", w.tensor, dw.tensor);
    Var x = p;
    for (int layer = 0; layer < 6; ++layer) {
      Graph::Scope scope(g, fmt::format("layers.{}", layer));
      const auto block = [&, x] { return times(softmax(times(x, p)), softmax(x)); };
      x = recompute ? g.checkpoint(block) : block();
    }
    return sum(x);
  }
};

TEST_F(GraphTest, recompute_is_bitwise_neutral_and_smaller) {
  Network plain, thrifty;
  Graph g, h;
  g.backward(plain.loss(g, false));
  h.backward(thrifty.loss(h, true));
  Instance a(g.finish()), b(h.finish());
  a.run(stream);
  b.run(stream);
  EXPECT_EQ(values(plain.dw.tensor), values(thrifty.dw.tensor));
  EXPECT_NE(values(plain.dw.tensor), std::vector<float>(32, 0.0f));
  EXPECT_LT(b.plan().live_bytes, a.plan().live_bytes);
  EXPECT_GT(b.program().records.size(), a.program().records.size());
}

TEST_F(GraphTest, eager_and_replay_agree_bit_for_bit) {
  Network eager, recorded;
  Graph e({.eager = &stream}), g;
  const Var le = eager.loss(e, false);
  e.backward(le);
  const Var lg = g.keep(recorded.loss(g, false));
  g.backward(lg);
  Instance exe(g.finish());
  exe.run(stream);
  EXPECT_EQ(values(exe.tensor(lg)), values(e.eager_tensor(le)));
  EXPECT_EQ(values(recorded.dw.tensor), values(eager.dw.tensor));
}

TEST_F(GraphTest, inference_keeps_nothing_for_backward) {
  Network n;
  Graph train, infer({.inference = true});
  train.backward(n.loss(train, false));
  const Var y = infer.keep(n.loss(infer, false));
  EXPECT_THROW(infer.backward(y), Error);
  EXPECT_LT(plan(infer.program()).live_bytes, plan(train.program()).live_bytes);
}

TEST_F(GraphTest, a_tensor_without_elements_needs_no_memory) {  // devices give out null for it
  const Tensor nothing(nullptr, f32({0, 4}));
  Graph e({.eager = &stream}), g;
  const Var eager = sum(times(e.parameter("w", nothing, nothing), e.constant("x", nothing)));
  const Var loss = g.keep(sum(times(g.parameter("w", nothing, nothing), g.constant("x", nothing))));
  e.backward(eager);
  g.backward(loss);
  const Instance exe(g.finish());
  exe.run(stream);
  EXPECT_EQ(values(e.eager_tensor(eager)), std::vector<float>{0});
  EXPECT_EQ(values(exe.tensor(loss)), std::vector<float>{0});
}

TEST_F(GraphTest, mistakes_are_named) {
  Graph g, other;
  const Var x = g.differentiable_input("x", f32({2, 2})), y = other.input("y", f32({2, 2}));
  EXPECT_THROW(times(x, y), Error);
  EXPECT_THROW(g.backward(x), Error);                            // not one element
  EXPECT_THROW(g.backward(sum(g.input("z", f32({2})))), Error);  // nothing has a gradient
  EXPECT_THROW(g.reshape(x, {3}), Error);
  const Var t = times(x, x);
  Instance exe(g.finish());
  EXPECT_THROW(exe.tensor(t), Error);
}

/// Absent variables, and memory that is known with another shape.
TEST_F(GraphTest, variables_that_are_not_of_the_program_are_refused) {
  OwnedTensor w(f32({2, 3})), dw(f32({2, 3})), other(f32({2, 3}));
  Graph g;
  const Var p = g.parameter("w", w.tensor, dw.tensor), c = g.constant("c", other.tensor);
  EXPECT_EQ(g.parameter("w", w.tensor, dw.tensor).id(), p.id());
  EXPECT_THROW(g.parameter("w", w.tensor, other.tensor), Error) << "the other tensor would receive no gradient";
  EXPECT_EQ(g.constant("c", other.tensor).id(), c.id());
  EXPECT_THROW(g.constant("c", Tensor(other.tensor.data(), f32({1, 3}))), Error) << "which would be all of it";
  EXPECT_THROW(g.keep(g.gradient(c)), Error);
  g.backward(sum(p));
  const Instance exe(g.finish());
  EXPECT_THROW(exe.tensor(Var()), Error);
}

TEST_F(GraphTest, a_second_loss_of_the_same_ops_is_refused) {
  OwnedTensor w(f32({1, 2})), dw(f32({1, 2}));
  Graph g;
  const Var p = g.parameter("w", w.tensor, dw.tensor);
  const Var first = sum(times(p, p)), second = sum(p);
  g.backward(first);
  EXPECT_THROW(g.backward(second), Error);
}

/// y = a w^T + x passes dy to x unchanged: no copy, and the same gradient as that of separate ops.
TEST_F(GraphTest, a_gradient_that_passes_through_is_not_copied) {
  OwnedTensor w({{8, 8}, DType::f32}), dw({{8, 8}, DType::f32}), x({{4, 8}, DType::f32}), dx({{4, 8}, DType::f32});
  for (int i = 0; i < 64; ++i) w.tensor.ptr<float>()[i] = Rng{3, 1}.uniform(static_cast<std::uint64_t>(i));
  for (int i = 0; i < 32; ++i) x.tensor.ptr<float>()[i] = Rng{3, 2}.uniform(static_cast<std::uint64_t>(i));
  std::vector<std::vector<float>> gradients;
  for (const bool fused : {true, false}) {
    Graph g;
    const Var p = g.parameter("w", w.tensor, dw.tensor);
    Var h = softmax(g.parameter("x", x.tensor, dx.tensor));
    for (int layer = 0; layer < 2; ++layer)
      h = fused ? linear(softmax(h), p, {}, {}, h) : add(linear(softmax(h), p), h);
    g.backward(sum(h));
    Instance exe(g.finish());
    for (std::size_t i = 0; i < exe.program().records.size(); ++i) {
      const auto& r = exe.program().records[i];
      if (r.op == Linear::name && r.phase == Phase::backward) {
        EXPECT_FALSE(exe.operands(static_cast<int>(i))[3]) << "dresidual";
      }
    }
    exe.run(stream);
    gradients.push_back(values(dx.tensor));
    for (float v : values(dw.tensor)) gradients.back().push_back(v);
  }
  EXPECT_EQ(gradients[0], gradients[1]);
  EXPECT_NE(gradients[0], std::vector<float>(gradients[0].size(), 0.0f));
}

TEST_F(GraphTest, text_names_records_and_totals) {
  Network n;
  Graph g;
  g.backward(n.loss(g, true));
  const auto text = program_text(g.program(), plan(g.program()));
  for (const char* word : {"softmax", "recompute", "backward", "layers.5", "F32(4, 8)", "peak memory"})
    EXPECT_NE(text.find(word), std::string::npos) << word;
}

TEST_F(PlanTest, no_two_live_slots_share_bytes) {
  Network n;
  Graph g;
  g.backward(n.loss(g, false));
  const auto& p = g.program();
  const auto plan = hpcdl::plan(p);
  for (std::size_t a = 0; a < p.slots.size(); ++a)
    for (std::size_t b = a + 1; b < p.slots.size(); ++b) {
      if (plan.offset[a] < 0 || plan.offset[b] < 0) continue;
      const auto &la = plan.lifetime[a], &lb = plan.lifetime[b];
      if (la.last < lb.first || lb.last < la.first) continue;
      EXPECT_TRUE(plan.offset[a] + arena_size(p.slots[a]) <= plan.offset[b] ||
                  plan.offset[b] + arena_size(p.slots[b]) <= plan.offset[a]);
    }
}

/// A chain with skip connections and sizes over four orders of magnitude, as a training step has them.
Recording random_program(int records, std::uint64_t seed) {
  const Rng rng{seed, 9};
  Graph g;
  std::vector<Var> live{g.differentiable_input("x", {{1, 64}, DType::f32})};
  std::uint64_t draw = 0;
  for (int i = 0; i < records; ++i) {
    const auto size = std::int64_t{16} << rng.below(draw++, 11);
    const Var out = g.temporary("t", {{1, size}, DType::f32});
    std::vector<Operand> operands{out.operand()};
    operands[0].access = Access::write;
    for (int k = 0; k < 2; ++k) {
      const std::uint64_t reach = rng.below(draw++, 10) == 0 ? 400 : 4;
      const auto back = std::min<std::uint64_t>(live.size(), 1 + rng.below(draw++, reach));
      operands.push_back(live[live.size() - back].operand());
    }
    g.emit("synthetic", [](Stream&, const Grad*, const void*) {}, operands, nullptr, 0, {});
    live.push_back(out);
  }
  return g.finish();
}

TEST_F(PlanTest, an_input_that_no_record_reads_has_a_place) {
  Graph g;
  const Var x = g.keep(g.input("x", {{3}, DType::f32}));
  const Instance exe(g.finish());
  set(exe.tensor(x), {1, 2, 3});
  exe.run(stream);
  EXPECT_EQ(values(exe.tensor(x)), (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(exe.plan().worst_record, -1);
}

TEST_F(PlanTest, within_a_tenth_of_the_live_bytes) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto plan = hpcdl::plan(random_program(300, seed).program);
    EXPECT_GE(plan.arena_bytes, plan.live_bytes);
    EXPECT_LE(static_cast<double>(plan.arena_bytes), 1.1 * static_cast<double>(plan.live_bytes)) << "seed " << seed;
  }
}

TEST_F(PlanTest, planned_peak_is_measured_peak) {
  Network n;
  Graph g;
  g.backward(n.loss(g, false));
  auto arena = std::make_shared<Buffer>(1 << 20);
  std::memset(arena->data(), 0xa5, static_cast<std::size_t>(arena->bytes()));
  Instance exe(g.finish(), arena);
  ASSERT_EQ(exe.arena(), arena);
  exe.run(stream);
  std::int64_t top = 0;
  for (std::int64_t i = 0; i < arena->bytes(); ++i)
    if (arena->data()[i] != std::byte{0xa5}) top = i + 1;
  EXPECT_LE(top, exe.plan().arena_bytes);
  EXPECT_GT(top, exe.plan().arena_bytes - Plan::kAlign);
}

}  // namespace
}  // namespace hpcdl
