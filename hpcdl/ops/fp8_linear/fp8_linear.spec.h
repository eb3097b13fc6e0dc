#pragma once

#include "hpcdl/ops/activations.h"
#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/contract.h"
#include "hpcdl/ops/fp8_linear/fp8_linear.h"

namespace hpcdl::contract {

/// What tensor cores may lose of the sum of one block: each step of 32 of k cuts its terms, and the sum so far, to 14
/// bits of the largest of them.
struct Fp8BlockLoss {
  double sum = 0, largest = 0, loss = 0;
  void add(std::int64_t k, double term) {
    sum += term, largest = std::max({largest, std::fabs(sum), std::fabs(term)});
    if (k % 32 == 31) loss += 33 * 0x1p-13 * largest, largest = std::fabs(sum);
    if (k % kF8Block == kF8Block - 1) sum = largest = 0;
  }
};

/// `loss`: the error that tensor cores add, as a multiple of the error that allowed_error() allows per magnitude.
inline double fp8_magnitudes(double loss, std::int64_t k) { return loss / ((4 + std::sqrt(k + 2.0)) * 0x1p-24); }

inline void fp8_reference(Outputs out, Inputs in, const Fp8Linear::Args& args) {
  const auto n = in[1].dim(0), k = in[1].dim(1), m = in[0].size() / k;
  const bool blocks = in[3].spec.shape.rank() == 2;
  const auto scale_of = [&](const Values& v, std::int64_t i) { return blocks ? 1.0 : v[v.size() > 1 ? i : 0]; };
  double amax = 0, amax_scale = 0;
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      Sum sum;
      Fp8BlockLoss lost;
      for (std::int64_t l = 0; l < k; ++l) {
        const auto block = l / kF8Block, across = (k + kF8Block - 1) / kF8Block;
        const double scale = blocks ? in[2][i * across + block] * in[3][j / kF8Block * across + block] : 1;
        const double term = in[0][i * k + l] * in[1][j * k + l] * scale;
        sum.add(term), lost.add(l, term);
      }
      const double scale = scale_of(in[2], i) * scale_of(in[3], j);
      Sum z{sum.value * scale,
            (sum.scale + fp8_magnitudes(lost.loss + 33 * 0x1p-13 * lost.largest, k)) * std::fabs(scale)};
      if (in[4]) z.add(in[4][j]);
      const double r = in[5] ? in[5][i * n + j] : 0;
      const double y = activated(args.activation, z.value) + r, magnitude = 2 * z.scale + std::fabs(r);
      out[0].set(i * n + j, y, magnitude);
      amax = std::fmax(amax, std::fabs(y)), amax_scale = std::max(amax_scale, magnitude);
    }
  if (args.amax) out[1].set(0, amax, amax_scale);
}

/// Dims: M, N, K / 16. Variants: scales of tensors; of rows, with bias, gelu and residual; of blocks, A in E5M2, amax.
inline Problem fp8_problem(const Dims& d, DType t, int v) {
  const std::int64_t m = d[0], n = d[1], k = d[2] * 16, blocks = (k + kF8Block - 1) / kF8Block;
  const auto scale = [](const Shape& s) { return Input{{s, DType::f32}, Role::positive}; };
  Problem p;
  p.in = {{{{m, k}, v == 2 ? DType::f8_e5m2 : DType::f8_e4m3}},
          {{{n, k}, DType::f8_e4m3}, Role::weight},
          scale(v == 2   ? Shape{m, blocks}
                : v == 1 ? Shape{m}
                         : Shape{1}),
          scale(v == 2   ? Shape{(n + kF8Block - 1) / kF8Block, blocks}
                : v == 1 ? Shape{n}
                         : Shape{1}),
          v == 1 ? Input{{{n}, t}, Role::weight} : Input{},
          v == 1 ? Input{{{m, n}, t}} : Input{}};
  p.out = {{{m, n}, t}, v == 2 ? Spec{{1}, DType::f32} : Spec()};
  p.set_args(
      hpcdl_fp8_linear_args{v == 1 ? HPCDL_ACT_GELU_TANH : HPCDL_ACT_NONE, v == 2},
      Fp8Linear::Args{.activation = v == 1 ? Activation::gelu_tanh : Activation::none, .out = t, .amax = v == 2});
  return p;
}

inline Contracts fp8_linear_contracts() {
  auto c =
      of<Fp8Linear>("fp8_linear",
                    "y = act((A B^T) * scales + bias) + residual, A and B in 8-bit floats, and amax = max |y|; bias, "
                    "residual and amax are optional; the layouts of scales: fp8_linear.h",
                    {"a", "b", "a_scale", "b_scale", "bias", "residual"}, {"y", "amax"});
  c.dims = {{"M", 1, 40}, {"N", 1, 70}, {"K/16", 1, 30}};
  c.shapes = {{2, 16, 2}, {1, 1, 1}, {7, 15, 3}, {3, 17, 8}, {5, 130, 9}, {0, 16, 2}, {33, 48, 17}};
  c.typical = {5, 33, 11};
  c.rows = kNoRows;  // amax belongs to all of them
  c.timed = {256, 1024, 64};
  c.variants = 3;
  c.patterns = {Pattern::positive, Pattern::constant, Pattern::zero, Pattern::mixed, Pattern::nan};
  c.problem = fp8_problem;
  c.reference = with_args<Fp8Linear::Args>(fp8_reference);
  c.reduction = [](const Problem& p) { return p.in[0].spec[-1] + 2; };
  c.flops = [](const Problem& p) {
    return 2.0 * static_cast<double>(p.out[0].size()) * static_cast<double>(p.in[0].spec[-1]);
  };
  return {c};
}

inline void fp8_linear_cases(auto& to) {
  const auto family = [&](const char* name, bool rows, bool rest) {
    to.add_forward(name, "MxNxK", {}, {{2048, 2048, 2048}, {1024, 3072, 768}}, [rows, rest](const auto& v) {
      const auto m = v.dim('M'), n = v.dim('N'), k = (v.dim('K') + 15) / 16 * 16;  // for drawn shapes
      const auto input = [&](const char* named, const Shape& shape, DType d) {
        return v.graph.input(named, Spec{shape, d});
      };
      const auto bias = rest ? input("bias", {n}, v.dtype) : v.none();
      return fp8_linear(input("a", {m, k}, DType::f8_e4m3), input("b", {n, k}, DType::f8_e4m3),
                        input("a_scale", {rows ? m : 1}, DType::f32), input("b_scale", {rows ? n : 1}, DType::f32),
                        {.activation = rest ? Activation::gelu_tanh : Activation::none, .out = v.dtype, .amax = rest},
                        bias)[0];
    });
  };
  family("fp8_linear", false, false);
  family("fp8_linear+rows", true, false);
  family("fp8_linear+bias_gelu_amax", false, true);
}

}  // namespace hpcdl::contract
