#include "hpcdl/ops/fp8_cast/fp8_cast.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/core/element.h"
#include "hpcdl/core/error.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/devices.h"

namespace hpcdl {
namespace {

constexpr DType kE4m3 = DType::f8_e4m3, kE5m2 = DType::f8_e5m2;
using Args = Fp8Cast::Args;

struct Casts {
  OwnedTensor q, qt, scales, amax;
};

/// Runs on `device`; the results are on the host.
Casts cast(Device device, const Tensor& x, const Args& a, const Tensor& history = {}) {
  Pool pool(2);
  Stream s(device, pool);
  const auto specs = Fp8Cast::infer(x.spec(), history ? history.spec() : Spec(), a);
  std::vector<OwnedTensor> there;
  for (const auto& spec : specs) there.emplace_back(spec, device);
  for (const auto& in : {x, history}) {
    there.emplace_back(in ? in.spec() : Spec{{0}, DType::f32}, device);
    if (in) copy(s, there.back().tensor, in);
  }
  Fp8Cast::forward(s, there[0].tensor, there[1].tensor, there[2].tensor, there[3].tensor, there[4].tensor,
                   history ? there[5].tensor : Tensor(), a);
  Casts host{OwnedTensor(specs[0]), OwnedTensor(specs[1]), OwnedTensor(specs[2]), OwnedTensor(specs[3])};
  copy(s, host.q.tensor, there[0].tensor), copy(s, host.qt.tensor, there[1].tensor);
  copy(s, host.scales.tensor, there[2].tensor), copy(s, host.amax.tensor, there[3].tensor);
  s.synchronize();
  return host;
}

OwnedTensor normal(const Spec& spec) {
  OwnedTensor x(spec);
  const Rng rng{5, 1};
  for (std::int64_t i = 0; i < spec.size(); ++i)
    set_element(x.tensor, i, rng.normal(static_cast<std::uint64_t>(i)) * 3);
  return x;
}

/// A history of two tensors, of which the second one has this magnitude, some steps ago.
OwnedTensor history_of(float magnitude) {
  OwnedTensor h(amax_history_spec(2));
  std::memset(h.tensor.data(), 0, static_cast<std::size_t>(h.tensor.bytes()));
  float* v = h.tensor.ptr<float>();
  v[0] = v[1] = 1000;  // of this step, which does not count
  v[2 * 1] = 500;      // of the other tensor
  v[2 * kAmaxSteps + 1] = magnitude, v[2 * 3 + 1] = magnitude / 2;
  return h;
}

float largest_of(const Tensor& x, std::int64_t r0, std::int64_t r1, std::int64_t c0, std::int64_t c1) {
  double most = 0;
  for (std::int64_t r = r0; r < std::min(r1, x.rows()); ++r)
    for (std::int64_t c = c0; c < std::min(c1, x.cols()); ++c)
      most = std::fmax(most, std::fabs(element(x, r * x.cols() + c)));
  return static_cast<float>(most);
}

class Fp8CastOn : public ::testing::TestWithParam<Device> {
 protected:
  /// Compares codes and scales with those of the definition.
  void check(const Tensor& x, const Args& a, const Tensor& history, float delayed) const {
    const Casts z = cast(GetParam(), x, a, history);
    const std::int64_t m = x.rows(), k = x.cols();
    const bool rows = a.scaling == Fp8Scaling::row;
    const float top = a.to == kE4m3 ? 448 : 57344;
    const float *scales = z.scales.tensor.ptr<float>(), *amax = z.amax.tensor.ptr<float>();
    const auto expected = [&](std::int64_t r, bool turned) {
      const float most = !rows    ? delayed > 0 ? delayed : largest_of(x, 0, m, 0, k)
                            : turned ? largest_of(x, 0, m, r, r + 1)
                                  : largest_of(x, r, r + 1, 0, k);
      return most == 0 ? 1 : most / top;
    };
    int wrong = 0;
    for (const bool turned : {false, true}) {
      if (turned && !a.both) continue;
      const Tensor& q = turned ? z.qt.tensor : z.q.tensor;
      for (std::int64_t r = 0; r < q.rows(); ++r) {
        const float scale = scales[rows ? r + (turned ? m : 0) : 0];
        ASSERT_TRUE(r >= 3 || scale == expected(r, turned)) << r;
        for (std::int64_t c = 0; c < q.cols(); ++c) {
          const auto v = static_cast<float>(element(x, turned ? c * k + r : r * k + c));
          wrong += element(q, r * q.cols() + c) != rounded_to(a.to, static_cast<double>(v * (1 / scale)));
        }
      }
    }
    ASSERT_EQ(wrong, 0);
    if (rows) {
      for (std::int64_t i = 0; i < std::min<std::int64_t>(m, 3); ++i) ASSERT_EQ(amax[i], largest_of(x, i, i + 1, 0, k));
      return;
    }
    const std::int64_t across = (k + 127) / 128;
    for (std::int64_t t = 0; t < z.amax.tensor.size(); ++t)
      ASSERT_EQ(amax[t],
                largest_of(x, t / across * 128, t / across * 128 + 128, t % across * 128, t % across * 128 + 128))
          << t;
  }
};
INSTANTIATE_TEST_SUITE_P(fp8_cast, Fp8CastOn, ::testing::ValuesIn(testing::devices()), testing::device_kind);

TEST_P(Fp8CastOn, rounds_both_orders_with_scales_of_each_kind) {
  const Shape shapes[] = {{1, 1}, {7, 16}, {128, 128}, {130, 257}, {300, 100}, {2, 3, 144}, {256, 640}};
  const OwnedTensor known = history_of(4), unknown = history_of(0);
  for (const Shape& shape : shapes)
    for (const DType from : {DType::f32, DType::bf16, DType::f16})
      for (const DType to : {kE4m3, kE5m2})
        for (const bool both : {true, false}) {
          const OwnedTensor x = normal({shape, from});
          SCOPED_TRACE(fmt::format("{}x{} {} {} {}", x.tensor.rows(), x.tensor.cols(), dtype_name(from), dtype_name(to),
                                   both ? "both" : "one"));
          check(x.tensor, {to, Fp8Scaling::tensor, both}, {}, 0);
          check(x.tensor, {to, Fp8Scaling::row, both}, {}, 0);
          check(x.tensor, {to, Fp8Scaling::tensor, both, 1}, known.tensor, 4);
          check(x.tensor, {to, Fp8Scaling::tensor, both, 1}, unknown.tensor, 0);
        }
}

TEST_P(Fp8CastOn, what_exceeds_a_delayed_scale_saturates_and_is_measured) {
  OwnedTensor x = normal({{16, 32}, DType::f32});
  x.tensor.ptr<float>()[33] = -30, x.tensor.ptr<float>()[34] = NAN;
  const OwnedTensor history = history_of(2);
  const Casts z = cast(GetParam(), x.tensor, {.column = 1}, history.tensor);
  EXPECT_EQ(z.scales.tensor.ptr<float>()[0], 2.0f / 448);
  EXPECT_EQ(element(z.q.tensor, 33), -448);
  EXPECT_EQ(element(z.qt.tensor, 16 + 1), -448);
  EXPECT_TRUE(std::isnan(element(z.q.tensor, 34)));
  EXPECT_EQ(z.amax.tensor.ptr<float>()[0], 30);
}

TEST_P(Fp8CastOn, nothing_and_zeros) {
  const OwnedTensor none({{0, 16}, DType::bf16}), zeros({{16, 16}, DType::bf16});
  std::memset(zeros.tensor.data(), 0, static_cast<std::size_t>(zeros.tensor.bytes()));
  for (const auto scaling : {Fp8Scaling::tensor, Fp8Scaling::row})
    for (const auto* x : {&none, &zeros}) {
      const Casts z = cast(GetParam(), x->tensor, {.scaling = scaling});
      for (std::int64_t i = 0; i < z.scales.tensor.size(); ++i) ASSERT_EQ(z.scales.tensor.ptr<float>()[i], 1);
      for (std::int64_t i = 0; i < z.q.tensor.size(); ++i) ASSERT_EQ(element(z.q.tensor, i), 0);
    }
}

TEST(fp8_cast, refuses_operands_in_words) {
  const Spec x{{4, 16}, DType::f32};
  EXPECT_THROW(Fp8Cast::infer({{4, 4}, DType::i32}, {}, {}), Error);
  EXPECT_THROW(Fp8Cast::infer(x, {}, {.to = DType::bf16}), Error);
  EXPECT_THROW(Fp8Cast::infer(x, {}, {.scaling = Fp8Scaling::blocks}), Error);
  EXPECT_THROW(Fp8Cast::infer(x, amax_history_spec(3), {.column = 3}), Error);
  EXPECT_THROW(Fp8Cast::infer(x, amax_history_spec(3), {.column = -1}), Error);
  EXPECT_THROW(Fp8Cast::infer(x, amax_history_spec(3), {.scaling = Fp8Scaling::row}), Error);
  EXPECT_NO_THROW(Fp8Cast::infer(x, amax_history_spec(3), {.column = 2}));
}

}  // namespace
}  // namespace hpcdl
