#include "hpcdl/ops/fp8_linear/fp8_linear.spec.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/core/error.h"
#include "hpcdl/core/tolerance.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/every_isa.h"
#include "hpcdl/testing/op_spec.h"
#if HPCDL_CUDA
#include "hpcdl/device.h"
#include "hpcdl/ops/fp8_linear/fp8_ways.h"
#endif

namespace hpcdl {
namespace {

using testing::Fill;
using testing::Input;

constexpr DType kE4m3 = DType::f8_e4m3, kE5m2 = DType::f8_e5m2;

/// Those of a and b.
struct Types {
  DType a = kE4m3, b = kE4m3;
};
constexpr Types kTypes[] = {{kE4m3, kE4m3}, {kE5m2, kE4m3}, {kE4m3, kE5m2}};

enum class Scales { tensor, a_rows, rows, blocks };

Shape scale_shape(Scales s, bool of_a, std::int64_t m, std::int64_t n, std::int64_t k) {
  const auto blocks = [](std::int64_t size) { return (size + kF8Block - 1) / kF8Block; };
  if (s == Scales::blocks) return of_a ? Shape{m, blocks(k)} : Shape{blocks(n), blocks(k)};
  if (s == Scales::rows || (s == Scales::a_rows && of_a)) return {of_a ? m : n};
  return {1};
}

using Case = testing::OpSpec<Fp8Linear>::Case;
/// Aligned, because on a GPU the alignment of operands decides how they are multiplied, and so the bits.
Case plain(std::int64_t m, std::int64_t n, std::int64_t k, Scales s, DType a = kE4m3, DType out = DType::bf16) {
  const auto scale = [&](bool of_a) {
    return Input(scale_shape(s, of_a, m, n, k)).as(DType::f32).filled(Fill::positive).fixed();
  };
  return {.in = {Input({m, k}).as(a).fixed(), Input({n, k}).as(kE4m3).fixed(), scale(true), scale(false), Input::none(),
                 Input::none()},
          .args = {.out = out},
          .aligned = true};
}
Case full(std::int64_t m, std::int64_t n, std::int64_t k, Scales s, Activation act, DType out) {
  Case c = plain(m, n, k, s, m % 2 ? kE5m2 : kE4m3, out);
  c.in[4] = Input({n}).fixed();
  c.in[5] = Input({m, n}).as(out).fixed();
  c.args.activation = act, c.args.amax = true;
  return c;
}

const auto spec = testing::op<Fp8Linear>({
    .cases =
        {
            plain(1, 1, 16, Scales::tensor),
            plain(7, 48, 48, Scales::rows),
            plain(3, 17, 144, Scales::blocks, kE5m2),
            plain(0, 16, 32, Scales::tensor),
            plain(65, 33, 272, Scales::a_rows, kE4m3, DType::f32),
            plain(1, 128, 128, Scales::tensor),
            plain(7, 16, 16, Scales::rows, kE5m2),
            plain(129, 208, 304, Scales::blocks),
            plain(300, 400, 256, Scales::rows, kE4m3, DType::f16),
            full(5, 30, 64, Scales::rows, Activation::relu, DType::bf16),
            full(6, 47, 128, Scales::blocks, Activation::gelu_tanh, DType::f32),
            full(131, 50, 96, Scales::tensor, Activation::gelu_erf, DType::f16),
            full(200, 136, 400, Scales::rows, Activation::gelu_tanh, DType::bf16),
            full(65, 77, 144, Scales::blocks, Activation::relu, DType::f32),
        },
    .contracts = contract::fp8_linear_contracts(),
});

/// A product of integers whose sums are exact in every order and on tensor cores: those of a block stay below 2^11.
struct Product {
  std::int64_t m, n, k;
  Scales scales;
  DType out;
  OwnedTensor a, b, a_scale, b_scale, bias, residual, y, amax;
  Fp8Linear::Args args;

  Product(std::int64_t m_, std::int64_t n_, std::int64_t k_, Scales s, Types types = {}, DType out_ = DType::f32,
          bool rest = false)
      : m(m_),
        n(n_),
        k(k_),
        scales(s),
        out(out_),
        a({{m, k}, types.a}),
        b({{n, k}, types.b}),
        a_scale({scale_shape(s, true, m, n, k), DType::f32}),
        b_scale({scale_shape(s, false, m, n, k), DType::f32}),
        y({{m, n}, out}),
        amax({{1}, DType::f32}),
        args{.activation = rest ? Activation::relu : Activation::none, .out = out_, .amax = true} {
    if (rest) bias = OwnedTensor({{n}, DType::bf16}), residual = OwnedTensor({{m, n}, out});
    std::uint64_t stream = 0;
    for (const OwnedTensor* t : {&a, &b, &bias, &residual}) {
      const Rng rng{7, ++stream};
      if (!t->tensor) continue;
      for (std::int64_t i = 0; i < t->tensor.size(); ++i)
        set_element(t->tensor, i, static_cast<double>(rng.below(static_cast<std::uint64_t>(i), 7)) - 3);
    }
    for (const OwnedTensor* t : {&a_scale, &b_scale}) {  // powers of two, so that they are exact, too
      const Rng rng{7, ++stream};
      for (std::int64_t i = 0; i < t->tensor.size(); ++i)
        t->tensor.ptr<float>()[i] = std::ldexp(1.0f, static_cast<int>(rng.below(static_cast<std::uint64_t>(i), 4)) - 2);
    }
  }

  double scale(std::int64_t i, std::int64_t j, std::int64_t l) const {
    const float *sa = a_scale.tensor.ptr<float>(), *sb = b_scale.tensor.ptr<float>();
    const std::int64_t across = (k + kF8Block - 1) / kF8Block, block = l / kF8Block;
    if (scales == Scales::blocks)
      return static_cast<double>(sa[i * across + block]) * static_cast<double>(sb[j / kF8Block * across + block]);
    return static_cast<double>(sa[a_scale.tensor.size() > 1 ? i : 0]) *
           static_cast<double>(sb[b_scale.tensor.size() > 1 ? j : 0]);
  }
  double want(std::int64_t i, std::int64_t j) const {
    double sum = 0;
    for (std::int64_t l = 0; l < k; ++l)
      sum += element(a.tensor, i * k + l) * element(b.tensor, j * k + l) * scale(i, j, l);
    if (bias.tensor) sum += element(bias.tensor, j);
    if (args.activation == Activation::relu) sum = std::max(sum, 0.0);
    if (residual.tensor) sum += element(residual.tensor, i * n + j);
    return sum;
  }
  void run(Stream& s) {
    Fp8Linear::forward(s, y.tensor, amax.tensor, a.tensor, b.tensor, a_scale.tensor, b_scale.tensor, bias.tensor,
                       residual.tensor, args);
  }
  /// Compares up to `most` elements, the last ones included, with their exact values.
  void check(std::int64_t most = 20000, bool with_amax = true) const {
    const std::int64_t all = m * n, step = all <= most ? 1 : all / most | 1;
    double largest = 0;
    int wrong = 0;
    for (std::int64_t at = all - 1; at >= 0; at -= step) {
      const double w = want(at / n, at % n), got = element(y.tensor, at);
      largest = std::max(largest, std::fabs(w));
      if (got != rounded_to(out, w) && ++wrong < 4)
        ADD_FAILURE() << "row " << at / n << ", column " << at % n << ": got " << got << ", exact " << w;
    }
    ASSERT_EQ(wrong, 0);
    if (!with_amax) return;
    const auto top = static_cast<double>(amax.tensor.ptr<float>()[0]);
    ASSERT_TRUE(step == 1 ? top == largest : top >= largest) << "amax " << top << ", exact " << largest;
  }
};

struct Sizes {
  std::int64_t m, n, k;
};
const Sizes kOdd[] = {{1, 16, 16}, {7, 48, 48}, {1, 1, 16}, {130, 257, 144}, {64, 8, 272}};

TEST(fp8_linear, sums_of_integers_are_exact_with_every_kind_of_scale) {
  Pool pool(2);
  testing::for_each_isa([&] {
    for (const auto& [m, n, k] : kOdd)
      for (const Scales scales : {Scales::tensor, Scales::a_rows, Scales::rows, Scales::blocks})
        for (const Types types : kTypes) {
          Product p(m, n, k, scales, types, DType::f32, m % 2 == 1);
          Stream s(pool);
          p.run(s);
          p.check();
        }
  });
}

std::string refusal(const Spec& a, const Spec& b, const Spec& a_scale, const Spec& b_scale, Fp8Linear::Args args = {}) {
  try {
    Fp8Linear::infer(a, b, a_scale, b_scale, {}, {}, args);
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

TEST(fp8_linear, refuses_operands_in_words) {
  const Spec a{{4, 32}, kE4m3}, b{{8, 32}, kE4m3}, one{{1}, DType::f32};
  EXPECT_EQ(refusal(a, b, one, one), "accepted");
  EXPECT_NE(refusal({{4, 40}, kE4m3}, {{8, 40}, kE4m3}, one, one).find("multiple of 16, got 40: pad both"),
            std::string::npos);
  EXPECT_NE(refusal({{4, 32}, DType::bf16}, b, one, one).find("a must be F8_E4M3 or F8_E5M2"), std::string::npos);
  EXPECT_NE(refusal({{4, 32}, kE5m2}, {{8, 32}, kE5m2}, one, one).find("one of a and b must be F8_E4M3"),
            std::string::npos);
  EXPECT_NE(refusal(a, {{8, 48}, kE4m3}, one, one).find("b must be F8_E4M3 or F8_E5M2 (N, 32)"), std::string::npos);
  EXPECT_NE(refusal(a, b, {{3}, DType::f32}, one).find("scales must be F32, of a: (1) or (4)"), std::string::npos);
  EXPECT_NE(refusal(a, b, {{4, 1}, DType::f32}, one).find("of blocks"), std::string::npos);
  EXPECT_NE(refusal(a, b, {{1}, DType::bf16}, one).find("scales must be F32"), std::string::npos);
  EXPECT_NE(refusal(a, b, one, one, {.out = DType::i32}).find("output must be F32, BF16 or F16"), std::string::npos);
  EXPECT_EQ(refusal(a, b, {{4, 1}, DType::f32}, {{1, 1}, DType::f32}), "accepted");
}

void check_odd_scales(Stream& s) {
  Product p(4, 8, 32, Scales::rows);
  float* scale = p.a_scale.tensor.ptr<float>();
  scale[0] = 0, scale[1] = -2, scale[2] = NAN, scale[3] = 1;
  p.run(s);
  for (std::int64_t j = 0; j < p.n; ++j) {
    const float* y = p.y.tensor.ptr<float>() + j;
    EXPECT_EQ(y[0], 0);
    EXPECT_EQ(static_cast<double>(y[p.n]), p.want(1, j));
    EXPECT_TRUE(std::isnan(y[2 * p.n]));
    EXPECT_EQ(static_cast<double>(y[3 * p.n]), p.want(3, j));
  }
  EXPECT_TRUE(std::isfinite(p.amax.tensor.ptr<float>()[0])) << "NaN does not belong to amax";
}

TEST(fp8_linear, scales_of_zero_or_less_and_nan_are_numbers_like_any_other) {
  Pool pool(2);
  Stream s(pool);
  check_odd_scales(s);
}

#if HPCDL_CUDA

/// The operands of a Product in the memory of a GPU.
struct There {
  std::vector<OwnedTensor> owned;
  Fp8Product product;
  There(Stream& s, const Product& p) {
    const auto put = [&](const OwnedTensor& from) -> Tensor {
      if (!from.tensor) return {};
      owned.emplace_back(from.tensor.spec(), s.device());
      copy(s, owned.back().tensor, from.tensor);
      return owned.back().tensor;
    };
    owned.reserve(8);
    product = {put(p.y),       put(p.amax), put(p.a),        put(p.b),         put(p.a_scale),
               put(p.b_scale), put(p.bias), put(p.residual), p.args.activation};
  }
  void back(Stream& s, Product& p) const {
    copy(s, p.y.tensor, product.y), copy(s, p.amax.tensor, product.amax);
    s.synchronize();
  }
};

/// The GPU, or nothing if there is none that multiplies 8-bit floats.
bool has_gpu() { return cuda_devices() > 0; }

TEST(fp8_linear_gpu, every_way_is_exact_at_shapes_around_the_edges_of_tiles) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU";
  Pool pool(2);
  Stream s(Device::cuda(0), pool);
  const auto names = cuda::fp8_way_names();
  std::vector<int> runs(names.size());
  const Sizes sizes[] = {{1, 16, 16},      {7, 48, 48},      {128, 128, 128},   {129, 136, 4112},
                         {300, 400, 1040}, {8191, 208, 272}, {256, 1040, 2064}, {1000, 333, 4112},
                         {1, 4096, 4112},  {257, 1, 640},    {5000, 3000, 144}};
  for (const auto& [m, n, k] : sizes)
    for (const Scales scales : {Scales::tensor, Scales::a_rows, Scales::rows, Scales::blocks})
      for (const Types types : kTypes)
        for (const DType out : {DType::bf16, DType::f16, DType::f32})
          for (const bool rest : {false, true}) {
            if (rest ? out == DType::bf16 : out == DType::f16) continue;
            if (m * n > 1000000 && (types.a == kE5m2 || out == DType::f16)) continue;
            Product p(m, n, k, scales, types, out, rest);
            for (int way = 0; way < static_cast<int>(names.size()); ++way) {
              There there(s, p);
              if (names[static_cast<std::size_t>(way)] == "cublasLt")
                there.product.amax = {};  // cuBLASLt gives none of y in 16 bits
              if (!cuda::fp8_fits(s, there.product, way)) continue;
              ++runs[static_cast<std::size_t>(way)];
              SCOPED_TRACE(fmt::format("{} {} out {}", names[static_cast<std::size_t>(way)],
                                       cuda::words_of(there.product), dtype_name(out)));
              const Tensor amax = there.product.amax;
              cuda::fp8_linear_by(way, s, there.product);
              copy(s, p.y.tensor, there.product.y);
              if (amax) copy(s, p.amax.tensor, amax);
              s.synchronize();
              p.check(200, static_cast<bool>(amax));
            }
          }
  for (std::size_t i = 0; i < names.size(); ++i) EXPECT_GT(runs[i], 0) << names[i];
}

TEST(fp8_linear_gpu, odd_scales) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU";
  Pool pool(2);
  Stream s(Device::cuda(0), pool);
  Product p(4, 8, 32, Scales::rows);
  float* scale = p.a_scale.tensor.ptr<float>();
  scale[0] = 0, scale[1] = -2, scale[2] = NAN, scale[3] = 1;
  for (const int way : {0, 2}) {
    There there(s, p);
    cuda::fp8_linear_by(way, s, there.product);
    there.back(s, p);
    for (std::int64_t j = 0; j < p.n; ++j) {
      EXPECT_EQ(element(p.y.tensor, j), 0);
      EXPECT_EQ(element(p.y.tensor, p.n + j), p.want(1, j));
      EXPECT_TRUE(std::isnan(element(p.y.tensor, 2 * p.n + j)));
      EXPECT_EQ(element(p.y.tensor, 3 * p.n + j), p.want(3, j));
    }
    EXPECT_TRUE(std::isfinite(p.amax.tensor.ptr<float>()[0]));
  }
}

/// Positive numbers add up, so that a sum that stays on the tensor cores outgrows its terms.
TEST(fp8_linear_gpu, sums_are_promoted_every_128_of_k) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU";
  Pool pool(2);
  Stream s(Device::cuda(0), pool);
  for (const std::int64_t k : {4096, 16384, 65536}) {
    Product p(128, 192, k, Scales::tensor);
    for (const OwnedTensor* t : {&p.a, &p.b})
      for (std::int64_t i = 0; i < t->tensor.size(); ++i)
        set_element(t->tensor, i, 0.25 + static_cast<double>(Rng{9, t == &p.a}.uniform(static_cast<std::uint64_t>(i))));
    p.a_scale.tensor.ptr<float>()[0] = p.b_scale.tensor.ptr<float>()[0] = 1;
    int outside[2] = {};
    for (const bool promoted : {false, true}) {
      There there(s, p);
      if (!cuda::fp8_fits(s, there.product, 0)) GTEST_SKIP() << "no tile kernel on this GPU";
      cuda::fp8_linear_by(0, s, there.product, promoted);
      there.back(s, p);
      for (std::int64_t at = 0; at < 64; ++at) {
        const std::int64_t i = at % 8 * 16, j = at / 8 * 24;
        contract::Fp8BlockLoss lost;
        double sum = 0;
        for (std::int64_t l = 0; l < k; ++l) {
          const double term = element(p.a.tensor, i * k + l) * element(p.b.tensor, j * k + l);
          sum += term, lost.add(l, term);
        }
        const double bound = lost.loss + allowed_error(DType::f32, sum, static_cast<double>(k), sum);
        outside[promoted] += std::fabs(element(p.y.tensor, i * p.n + j) - sum) > bound;
      }
    }
    EXPECT_EQ(outside[true], 0) << "K " << k;
    EXPECT_TRUE(k < 65536 || outside[false] == 64) << "the test would not see sums that are not promoted";
  }
}

TEST(fp8_linear_gpu, error_of_long_sums_is_that_of_cublas_lt) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU";
  Pool pool(2);
  Stream s(Device::cuda(0), pool);
  Product p(128, 192, 16384, Scales::tensor);
  for (const OwnedTensor* t : {&p.a, &p.b})
    for (std::int64_t i = 0; i < t->tensor.size(); ++i)
      set_element(t->tensor, i, Rng{11, t == &p.a}.normal(static_cast<std::uint64_t>(i)));
  double error[2] = {};  // of each way, over the same elements
  for (const int way : {0, 1}) {
    There there(s, p);
    there.product.amax = {};
    if (!cuda::fp8_fits(s, there.product, way)) GTEST_SKIP() << "no " << cuda::fp8_way_names()[0] << " or no cuBLASLt";
    cuda::fp8_linear_by(way, s, there.product);
    copy(s, p.y.tensor, there.product.y);
    s.synchronize();
    for (std::int64_t at = 0; at < p.m * p.n; at += 97) {
      const double e = element(p.y.tensor, at) - p.want(at / p.n, at % p.n);
      error[way] += e * e;
    }
  }
  EXPECT_GT(error[0], 0);
  EXPECT_LE(std::sqrt(error[0]), 1.1 * std::sqrt(error[1]));
}

#endif

}  // namespace
}  // namespace hpcdl
