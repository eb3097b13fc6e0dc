#include "hpcdl/ops/adapter_rows/adapter_rows.spec.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <vector>

#include "hpcdl/core/element.h"
#include "hpcdl/core/error.h"
#include "hpcdl/core/tolerance.h"
#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/ops/scale/scale.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/every_isa.h"

namespace hpcdl {
namespace {

struct Case {
  std::int64_t rows, in, out;
  std::vector<std::int32_t> ranks;  // of each adapter; 0: it has none here
  bool shifts = false;
};

// One of each; no rows; an adapter without a matrix; none with one; more ranks than columns; tails of vectors.
const Case kCases[] = {
    {1, 1, 1, {1}},
    {0, 8, 4, {2, 1}},
    {7, 13, 5, {3, 0, 1}, true},
    {5, 4, 9, {0, 0}, true},
    {9, 3, 2, {5, 4}},
    {33, 65, 130, {1, 2, 8, 17}},
    {131, 40, 31, {16, 3}, true},
    {4, 768, 257, {8, 8, 8, 8, 8}},
    // On tensor cores: ranks that are no whole pieces, more than are computed at once, and one tile more.
    {270, 64, 72, {16, 3, 70}, true},
    {331, 264, 520, {8, 0, 64}}};

class Operands {
 public:
  Operands(const Case& c, DType type) : type_(type) {
    const auto n = std::ssize(c.ranks);
    std::int64_t all = 0;
    base = drawn({{c.rows, c.out}, type}), x = drawn({{c.rows, c.in}, type});
    chosen = OwnedTensor({{c.rows}, DType::i32}), ends = OwnedTensor({{n}, DType::i32});
    for (std::int64_t r = 0; r < c.rows; ++r)
      chosen.tensor.ptr<std::int32_t>()[r] = static_cast<std::int32_t>(
          static_cast<std::int64_t>(Rng{9, 1}.below(static_cast<std::uint64_t>(r), c.ranks.size() + 1)) - 1);
    for (std::int64_t i = 0; i < n; ++i)
      ends.tensor.ptr<std::int32_t>()[i] = static_cast<std::int32_t>(all += c.ranks[static_cast<std::size_t>(i)]);
    a = drawn({{all, c.in}, DType::f32}), b = drawn({{all * c.out}, DType::f32}), scales = drawn({{n}, DType::f32});
    scales.tensor.ptr<float>()[0] = 1;
    if (c.shifts) shifts = drawn({{n, c.out}, DType::f32});
  }

  std::vector<View> inputs() const {
    std::vector<View> list;
    for (const auto* t : {&base, &x, &chosen, &a, &b, &ends, &scales, &shifts}) list.emplace_back(t->tensor);
    return list;
  }
  OwnedTensor run(Stream& s, bool in_place = false) const {
    return run(s, base.tensor, x.tensor, chosen.tensor, in_place);
  }
  /// Of some of the rows, on the device of the stream.
  OwnedTensor run(Stream& s, const View& of, const View& with, const View& by, bool in_place = false) const {
    std::deque<OwnedTensor> memory;
    const auto there = [&](const View& v) {
      if (!v) return Tensor();
      const auto& t = memory.emplace_back(v.spec(), s.device()).tensor;
      copy(s, t, v);
      return t;
    };
    const auto scratch = [&](const Spec& spec) { return memory.emplace_back(spec, s.device()).tensor; };
    const Tensor given = there(of);
    OwnedTensor y(of.spec());
    std::memset(y.tensor.data(), 0xFF, static_cast<std::size_t>(y.tensor.bytes()));
    const Tensor out = in_place ? given : there(y.tensor);
    const auto specs = AdapterRows::scratch(of.spec(), with.spec(), by.spec(), a.tensor.spec(), {}, {}, {}, {}, {});
    AdapterRows::forward(s, out, given, there(with), there(by), there(a.tensor), there(b.tensor), there(ends.tensor),
                         there(scales.tensor), there(shifts.tensor), scratch(specs[0]), scratch(specs[1]),
                         scratch(specs[2]), scratch(specs[3]), {});
    copy(s, y.tensor, out);
    s.synchronize();
    return y;
  }
  OwnedTensor base, x, chosen, a, b, ends, scales, shifts;

 private:
  OwnedTensor drawn(const Spec& spec) {
    OwnedTensor t(spec);
    const Rng rng{3, ++stream_};
    for (std::int64_t i = 0; i < spec.size(); ++i) set_element(t.tensor, i, rng.normal(static_cast<std::uint64_t>(i)));
    return t;
  }
  DType type_;
  std::uint64_t stream_ = 0;
};

bool same_bits(const View& a, const View& b) {
  return a.spec() == b.spec() && std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.bytes())) == 0;
}

View row(const View& v, std::int64_t r) {
  Spec one = v.spec();
  one.shape[0] = 1;
  return {v.ptr<std::byte>() + r * one.bytes(), one, v.device()};
}

/// f(operands, case, type, device), with every instruction set and on a GPU.
template <class F> void for_each_case(F f) {
  const auto on = [&](Device device) {
    for (const auto& c : kCases)
      for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
        SCOPED_TRACE(fmt::format("{}: {} rows of {}, {} outputs, {} adapters, {}", device.is_cuda() ? "GPU" : "CPU",
                                 c.rows, c.in, c.out, c.ranks.size(), dtype_name(type)));
        f(Operands(c, type), c, type, device);
      }
  };
  testing::for_each_isa([&] { on(Device::cpu()); });
  if (cuda_devices() > 0) on(Device::cuda(0));
}

TEST(adapter_rows, adds_to_each_row_what_its_adapter_says) {
  Pool two(2), one(1);
  for_each_case([&](const Operands& o, const Case& c, DType type, Device device) {
    std::vector<contract::Values> in;
    for (const auto& v : o.inputs()) in.push_back(v ? contract::values_of(v) : contract::Values());
    std::vector<contract::Expected> want{contract::Expected(o.base.tensor.spec())};
    AdapterRows::infer(in[0].spec, in[1].spec, in[2].spec, in[3].spec, in[4].spec, in[5].spec, in[6].spec, in[7].spec,
                       {});
    contract::adapter_rows_reference(want, in, {});
    Stream s(device, two), alone(device, one);
    const auto y = o.run(s);
    EXPECT_TRUE(same_bits(y.tensor, o.run(alone).tensor)) << "one thread and two differ";
    EXPECT_TRUE(same_bits(y.tensor, o.run(s, true).tensor)) << "in place it differs";
    const auto length = static_cast<double>(c.in + o.a.tensor[0] + 2);
    for (std::int64_t i = 0; i < y.tensor.size(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      // A x, its product with the scale, and in 16 bits the matrices are rounded, too.
      const double between = type == DType::f32 ? 0 : 4 * half_ulp(type) * want[0].scale[at];
      ASSERT_NEAR(element(y.tensor, i), want[0].value[at],
                  allowed_error(type, want[0].stored[at], length, 2 * want[0].scale[at]) + between)
          << "element " << i;
      if (o.chosen.tensor.ptr<std::int32_t>()[i / c.out] < 0) {
        ASSERT_EQ(element(y.tensor, i), element(o.base.tensor, i)) << "element " << i;
      }
    }
  });
}

TEST(adapter_rows, a_row_has_the_bits_that_it_has_alone) {
  Pool pool(2);
  for_each_case([&](const Operands& o, const Case& c, DType, Device device) {
    Stream s(device, pool);
    s.set_numerics({.row_invariant = true});
    const auto y = o.run(s);
    for (std::int64_t r = 0; r < c.rows; ++r)
      ASSERT_TRUE(same_bits(row(y.tensor, r), o.run(s, row(o.base.tensor, r), row(o.x.tensor, r),
                                                    {o.chosen.tensor.ptr<std::int32_t>() + r, {{1}, DType::i32}})
                                                  .tensor))
          << "row " << r;
  });
}

TEST(adapter_rows, one_adapter_of_all_rows_has_the_bits_of_two_layers_after_each_other) {
  Pool pool(2);
  Stream s(pool);
  testing::for_each_isa([&] {
    Operands o({21, 70, 33, {6}}, DType::f32);
    o.scales.tensor.ptr<float>()[0] = 1.7f;
    std::memset(o.chosen.tensor.data(), 0, static_cast<std::size_t>(o.chosen.tensor.bytes()));
    OwnedTensor low({{21, 6}, DType::f32}), want(o.base.tensor.spec());
    Linear::forward(s, low.tensor, o.x.tensor, o.a.tensor, {}, {}, {});
    Scale::forward(s, low.tensor, low.tensor, {.factor = 1.7f});
    Linear::forward(s, want.tensor, low.tensor, View(o.b.tensor.data(), {{33, 6}, DType::f32}), {}, o.base.tensor, {});
    EXPECT_TRUE(same_bits(o.run(s).tensor, want.tensor));
  });
}

TEST(adapter_rows, refuses_what_does_not_fit) {
  const Spec base{{3, 8}, DType::f32}, x{{3, 5}, DType::f32}, chosen{{3}, DType::i32}, a{{4, 5}, DType::f32},
      b{{32}, DType::f32}, ends{{2}, DType::i32}, scales{{2}, DType::f32}, shifts{{2, 8}, DType::f32};
  const auto infer = [&](const Spec& x_is, const Spec& chosen_is, const Spec& a_is, const Spec& b_is,
                         const Spec& scales_is, const Spec& shifts_is) {
    AdapterRows::infer(base, x_is, chosen_is, a_is, b_is, ends, scales_is, shifts_is, {});
  };
  EXPECT_NO_THROW(infer(x, chosen, a, b, scales, shifts));
  EXPECT_NO_THROW(infer(x, chosen, a, b, scales, {}));
  EXPECT_THROW(infer({{2, 5}, DType::f32}, chosen, a, b, scales, {}), Error);
  EXPECT_THROW(infer({{3, 5}, DType::bf16}, chosen, a, b, scales, {}), Error);
  EXPECT_THROW(infer(x, {{3}, DType::i64}, a, b, scales, {}), Error);
  EXPECT_THROW(infer(x, {{2}, DType::i32}, a, b, scales, {}), Error);
  EXPECT_THROW(infer(x, chosen, {{4, 6}, DType::f32}, b, scales, {}), Error);
  EXPECT_THROW(infer(x, chosen, a, {{31}, DType::f32}, scales, {}), Error);
  EXPECT_THROW(infer(x, chosen, a, b, {{3}, DType::f32}, {}), Error);
  EXPECT_THROW(infer(x, chosen, a, b, scales, {{2, 7}, DType::f32}), Error);

  Pool pool(1);
  Stream s(pool);
  Operands o({3, 5, 8, {2, 2}}, DType::f32);
  const auto said = [&] {
    try {
      o.run(s);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(said(), "no error");
  o.chosen.tensor.ptr<std::int32_t>()[1] = 2;
  EXPECT_EQ(said(), "[adapter_rows] expected an adapter from -1 to 1, found 2");
  o.ends.tensor.ptr<std::int32_t>()[1] = 5;
  EXPECT_EQ(said(), "[adapter_rows] the last end must be the 4 rows of a, found 5");
  o.ends.tensor.ptr<std::int32_t>()[1] = 1;
  EXPECT_EQ(said(), "[adapter_rows] ends must ascend, found 1 after 2");
}

}  // namespace
}  // namespace hpcdl
