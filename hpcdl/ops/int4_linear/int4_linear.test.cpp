#include "hpcdl/ops/int4_linear/int4_linear.spec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/core/error.h"
#include "hpcdl/core/ways.h"
#include "hpcdl/rng.h"
#include "hpcdl/simd/isa.h"
#include "hpcdl/testing/op_spec.h"
#if HPCDL_CUDA
#include "hpcdl/device.h"
#include "hpcdl/ops/int4_linear/int4_ways.h"
#include "hpcdl/ops/int4_linear/int4_widened.h"
#include "hpcdl/testing/spec_ways.h"
#endif

namespace hpcdl {
namespace {

using testing::Fill;
using testing::Input;
using testing::Values;

Input packed(std::int64_t n, std::int64_t k) { return Input::indices({n, k / 2}, 256).as(DType::u8); }
Input scales(std::int64_t n, std::int64_t k, std::int64_t group) {
  return Input({n, k / group}).as(DType::bf16).filled(Fill::uniform).fixed();
}
using Case = testing::OpSpec<Int4Linear>::Case;
/// Rows of x, N, K, G.
Case plain(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t g, bool exact, bool asymmetric = false,
           bool aligned = false) {
  return {.in = {Input({m, k}).fixed(), packed(n, k), scales(n, k, g), asymmetric ? scales(n, k, g) : Input::none(),
                 Input::none(), Input::none()},
          .args = {.exact = exact},
          .aligned = aligned};
}
Case full(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t g, Int4Activation act, DType out = DType::none) {
  const Input residual = out == DType::none ? Input({2, m, n}) : Input({2, m, n}).as(out);
  return {.in = {Input({2, m, k}).fixed(), packed(n, k), scales(n, k, g), scales(n, k, g), Input({n}).fixed(),
                 residual.fixed()},
          .args = {.exact = m % 2 == 0, .activation = act, .out = out}};
}

/// One row of x, weights that are not written.
Case decoding(std::int64_t n, std::int64_t k, std::int64_t g, bool asymmetric = false,
              Int4Activation act = Int4Activation::none) {
  const Input none = Input::none();
  const bool finished = act != Int4Activation::none;
  return {.in = {Input({1, k}).fixed(), packed(n, k), scales(n, k, g), asymmetric ? scales(n, k, g) : none,
                 finished ? Input({n}).fixed() : none, finished ? Input({1, n}).fixed() : none},
          .args = {.activation = act, .constant_weights = true}};
}

const auto
    spec =
        testing::op<Int4Linear>(
            {
                .cases =
                    {
                        plain(1, 1, 32, 32, false),
                        plain(1, 16, 64, 32, false),
                        plain(1, 100, 256, 64, false),
                        plain(1, 37, 384, 128, false, true),
                        plain(2, 33, 128, 64, false),
                        plain(3, 16, 128, 128, false, true),
                        plain(5, 17, 192, 32, false),
                        plain(7, 50, 64, 64, false, true),
                        plain(8, 96, 512, 32, false),
                        plain(13, 40, 256, 128, false),
                        plain(64, 48, 256, 64, false, true),
                        plain(0, 16, 64, 32, false),
                        plain(1, 5, 32, 32, true),
                        plain(1, 100, 256, 64, true, true),
                        plain(4, 31, 128, 32, true),
                        plain(9, 48, 384, 128, true, true),
                        plain(1, 257, 4096, 128, false),
                        plain(1, 4300, 608, 32, false),  // a GPU's blocks continue to further rows
                        plain(17, 80, 288, 32, false),
                        plain(21, 2100, 320, 64, false, true),
                        plain(260, 150, 384, 128, false),
                        plain(63, 208, 384, 32, false, true),  // numbers of rows around a tile of Hopper's warpgroups
                        plain(64, 64, 1280, 64, false),
                        plain(65, 192, 512, 128, false, true),
                        plain(200, 336, 256, 64, false, true),
                        plain(1, 75, 2304, 64, true),
                        plain(90, 48, 256, 64, true, true, true),
                        plain(190, 208, 384, 32, true, false, true),
                        decoding(16, 64, 32),
                        decoding(336, 1344, 64, true),
                        decoding(2064, 320, 32),
                        decoding(512, 8576, 128, true, Int4Activation::silu),
                        decoding(75, 320, 64),
                        decoding(32, 256, 64),
                        decoding(64, 4096, 64),
                        decoding(2112, 256, 32, true, Int4Activation::relu),
                        decoding(96, 768, 128, true, Int4Activation::gelu),
                        decoding(64, 5632, 64),
                        decoding(96, 8192, 32, true, Int4Activation::silu),
                        full(1, 30, 64, 32, Int4Activation::relu),
                        full(2, 47, 128, 64, Int4Activation::gelu),
                        full(3, 16, 64, 64, Int4Activation::silu),
                        full(4, 21, 64, 32, Int4Activation::none),
                        full(5, 21, 64, 32, Int4Activation::gelu_erf),
                        full(3, 35, 64, 32, Int4Activation::gelu_erf, DType::f32),
                        full(2, 35, 64, 32, Int4Activation::none, DType::f32),
                    },
                .contracts = contract::int4_linear_contracts(),
                // A sum is small compared with its terms, which are up to 8 scales + offset of at most 1, times inputs
                // of at most the scale that the tolerance assumes.
                .condition = 9,
            });

#if HPCDL_CUDA
/// Whether weights are widened depends on the way in which a GPU computes a call of such operands.
contract::Reference reference_on_gpu(const Stream& s, std::span<const Spec> in, const void* args) {
  const auto& a = *static_cast<const Int4Linear::Args*>(args);
  alignas(16) static std::byte somewhere[16];
  const auto view = [&](const Spec& of) { return of ? View(somewhere, of, s.device()) : View(); };
  const auto y = Int4Linear::infer(in[0], in[1], in[2], in[3], in[4], in[5], a);
  const auto shape = cuda::int4_shape(s, view(y), view(in[0]), {view(in[1]), view(in[2]), view(in[3])}, view(in[5]), a);
  if (shape.rows == 0) return {};
  const auto ways = cuda::int4_ways(s, shape);
  const auto is_taken = [taken = cuda::int4_way(s, shape)](const auto& way) { return way.id == taken; };
  if (!std::find_if(ways.begin(), ways.end(), is_taken)->widened) return {};
  return contract::with_args<Int4Linear::Args>(
      [](auto out, auto of, const auto& how) { contract::int4_reference_of(out, of, how, true); });
}
const auto registered = testing::references_on_gpu().emplace(Int4Linear::name, reference_on_gpu);
#endif

struct Problem {
  std::int64_t m, n, k, group;
  OwnedTensor x, packed, scale, y, values, steps, sums;
  Problem(std::int64_t m_, std::int64_t n_, std::int64_t k_, std::int64_t g, DType inputs = DType::f32)
      : m(m_),
        n(n_),
        k(k_),
        group(g),
        x(Spec{{m, k}, inputs}),
        packed(int4::packed_spec(n, k)),
        scale(int4::scale_spec(n, k, g)),
        y(Spec{{m, n}, DType::f32}),
        values(Spec{{m, k}, DType::f32}),
        steps(Spec{{m, k / g}, DType::f32}),
        sums(Spec{{m, k / g}, DType::i32}) {
    const Rng rng{3, 1};
    for (std::int64_t i = 0; i < m * k; ++i) set(i, static_cast<float>(rng.normal(static_cast<std::uint64_t>(i))));
    for (std::int64_t i = 0; i < packed.tensor.size(); ++i)
      packed.tensor.ptr<std::uint8_t>()[i] =
          static_cast<std::uint8_t>(rng.bits(static_cast<std::uint64_t>(i) + 1000000));
    for (std::int64_t i = 0; i < scale.tensor.size(); ++i)
      scale.tensor.ptr<bf16>()[i] = bf16(0.01f + rng.uniform(static_cast<std::uint64_t>(i) + 5000000));
  }
  void set(std::int64_t i, float v) {
    if (x.tensor.dtype() == DType::bf16) x.tensor.ptr<bf16>()[i] = bf16(v);
    else if (x.tensor.dtype() == DType::f16) x.tensor.ptr<f16>()[i] = f16(v);
    else x.tensor.ptr<float>()[i] = v;
  }
  void run(bool exact, View offset = {}) {
    Pool pool(2);
    Stream s(pool);
    Int4Linear::forward(s, y.tensor, x.tensor, packed.tensor, scale.tensor, offset, {}, {}, values.tensor, steps.tensor,
                        sums.tensor, {.exact = exact});
  }
};

// A derived bound for the rounding of inputs to 8 bits: each input has an error of at most half a step of its group.
TEST(int4_linear, rounding_of_inputs_stays_within_its_bound) {
  Problem p(3, 40, 512, 64);
  p.x.tensor.ptr<float>()[70] = 40;  // an outlier makes the step of its group large
  p.run(false);
  const Values x = contract::values_of(p.x.tensor), w = contract::values_of(p.packed.tensor),
               s = contract::values_of(p.scale.tensor);
  double worst = 0;
  for (std::int64_t i = 0; i < p.m; ++i)
    for (std::int64_t j = 0; j < p.n; ++j) {
      double want = 0, bound = 0;
      for (std::int64_t g = 0; g < p.k; g += p.group) {
        double most = 0, weights = 0;
        for (std::int64_t d = g; d < g + p.group; ++d) {
          const double v = contract::int4_weight(w, s, {}, j, d);
          want += v * x[i * p.k + d];
          weights += std::fabs(v);
          most = std::max(most, std::fabs(x[i * p.k + d]));
        }
        bound += most / 127 / 2 * weights * (1 + 1e-5);  // the float step is rounded
      }
      const double error = std::fabs(static_cast<double>(p.y.tensor.ptr<float>()[i * p.n + j]) - want);
      EXPECT_LE(error, bound);
      worst = std::max(worst, error / bound);
    }
  EXPECT_GT(worst, 0.01) << "the bound was not tested";
}

TEST(int4_linear, bad_inputs_show_in_their_row_only) {
  for (bool exact : {false, true})
    for (float bad : {NAN, INFINITY}) {
      Problem p(3, 20, 64, 32);
      p.x.tensor.ptr<float>()[64 + 40] = bad;
      p.run(exact);
      for (std::int64_t j = 0; j < p.n; ++j) {
        EXPECT_TRUE(std::isfinite(p.y.tensor.ptr<float>()[j]));
        EXPECT_FALSE(std::isfinite(p.y.tensor.ptr<float>()[p.n + j]));
        EXPECT_TRUE(std::isfinite(p.y.tensor.ptr<float>()[2 * p.n + j]));
      }
    }
}

TEST(int4_linear, zeros_and_extreme_inputs) {
  for (float magnitude : {0.0f, 1e-38f, 1e-20f, 1e30f}) {
    Problem p(1, 20, 64, 32);
    for (int i = 0; i < 64; ++i) p.x.tensor.ptr<float>()[i] = i % 2 ? magnitude : -magnitude;
    p.run(false);
    const Values w = contract::values_of(p.packed.tensor), s = contract::values_of(p.scale.tensor);
    for (std::int64_t j = 0; j < p.n; ++j) {
      double want = 0, terms = 0;
      for (std::int64_t d = 0; d < p.k; ++d) {
        want += contract::int4_weight(w, s, {}, j, d) * (d % 2 ? 1 : -1);
        terms += std::fabs(contract::int4_weight(w, s, {}, j, d));
      }
      EXPECT_NEAR(p.y.tensor.ptr<float>()[j], want * static_cast<double>(magnitude),
                  terms * (static_cast<double>(magnitude) * 1e-6 + 1e-30));
    }
  }
}

/// Row by row on vectors, together perhaps on tile registers: several parts of K, passes of rows, and odd remainders.
TEST(int4_linear, a_row_has_the_same_bits_whatever_the_number_of_rows) {
  const auto before = simd::active_isa();
  for (const auto isa : simd::kIsaKinds) {
    if (!simd::set_active_isa(isa)) continue;
    for (const auto& [rows, n, k, group] : {std::array<std::int64_t, 4>{9, 16, 128, 128},
                                            {40, 37, 1056, 32},
                                            {33, 20, 2112, 64},
                                            {150, 48, 8192, 128},
                                            {257, 17, 96, 32}})
      for (const bool offsets : {false, true}) {
        Problem all(rows, n, k, group), one(1, n, k, group);
        all.run(false, offsets ? View(all.scale.tensor) : View());
        for (std::int64_t r = 0; r < rows; ++r) {
          std::copy_n(all.x.tensor.ptr<float>() + r * k, k, one.x.tensor.ptr<float>());
          one.run(false, offsets ? View(one.scale.tensor) : View());
          ASSERT_EQ(std::memcmp(one.y.tensor.data(), all.y.tensor.ptr<float>() + r * n,
                                static_cast<std::size_t>(n) * sizeof(float)),
                    0)
              << simd::isa_name(isa) << ", row " << r << " of " << rows << ", N " << n << ", K " << k << ", group "
              << group << (offsets ? ", with offsets" : "");
        }
      }
  }
  simd::set_active_isa(before);
}

#if HPCDL_CUDA
OwnedTensor upload(Stream& s, View t) {
  OwnedTensor there(t.spec(), s.device());
  copy(s, there.tensor, t);
  return there;
}
OwnedTensor download(Stream& s, View t) {
  OwnedTensor here(t.spec());
  copy(s, here.tensor, t);
  s.synchronize();
  return here;
}
std::vector<std::byte> bytes_of(const OwnedTensor& t) {
  const auto* p = static_cast<const std::byte*>(t.tensor.data());
  return {p, p + t.tensor.bytes()};
}

/// A problem on a GPU, whose products write f32.
struct OnGpu {
  OwnedTensor x, packed, scale, y, values, steps, sums;
  int4::Weight w;
  OnGpu(Stream& s, const Problem& p, bool offsets)
      : x(upload(s, p.x.tensor)),
        packed(upload(s, p.packed.tensor)),
        scale(upload(s, p.scale.tensor)),
        y(p.y.tensor.spec(), s.device()),
        values(p.values.tensor.spec(), s.device()),
        steps(p.steps.tensor.spec(), s.device()),
        sums(p.sums.tensor.spec(), s.device()),
        w{packed.tensor, scale.tensor, offsets ? View(scale.tensor) : View()} {}  // arbitrary numbers serve as offsets
  void run(int way, Stream& s, View from, Tensor to, bool constant, bool exact = false) {
    cuda::int4_linear_by(way, s, to, from, w, {}, {}, {values.tensor, steps.tensor, sums.tensor},
                         {.exact = exact, .out = DType::f32, .constant_weights = constant});
  }
  std::vector<cuda::Int4Way> ways(Stream& s, bool exact = false) const {
    const auto list =
        cuda::int4_ways(s, cuda::int4_shape(s, y.tensor, x.tensor, w, {}, {.exact = exact, .constant_weights = true}));
    return {list.begin(), list.end()};
  }
};

/// Every way to compute a product on a GPU, against the built-in one, which the specs above have checked.
TEST(int4_linear, all_ways_on_a_gpu_agree_and_repeat) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  StepParams params;
  Stream s(Device::cuda(0), pool, &params);
  for (bool exact : {false, true})
    for (std::int64_t rows : {1, 3, 8, 13, 40, 65, 300})
      for (std::int64_t n : {77, 2176, 4176})
        for (std::int64_t group : {32, 128}) {
          const std::int64_t k = n == 4176 ? 896 : 768 + group;
          Problem host(rows, n, k, group);
          const bool offsets = rows % 8 == 1;
          OnGpu gpu(s, host, offsets);
          const OwnedTensor untouched(host.y.tensor.spec());
          host.run(exact, offsets ? View(host.scale.tensor) : View());
          const auto ways = gpu.ways(s, exact);
          ASSERT_FALSE(ways.empty());
          for (const auto& way : ways) {
            std::vector<std::byte> first;
            for (bool constant : {false, true, true}) {
              copy(s, gpu.y.tensor, untouched.tensor);
              gpu.run(way.id, s, gpu.x.tensor, gpu.y.tensor, constant, exact);
              const OwnedTensor back = download(s, gpu.y.tensor);
              if (first.empty()) first = bytes_of(back);
              else EXPECT_EQ(first, bytes_of(back)) << way.name;
              double worst = 0;
              for (std::int64_t i = 0; i < back.tensor.size(); ++i)
                worst = std::max(worst, std::fabs(static_cast<double>(back.tensor.ptr<float>()[i]) -
                                                  static_cast<double>(host.y.tensor.ptr<float>()[i])));
              // K products of at most 9 * 1.01 (weight) and 6 (input); rounding errors of sums as in tolerance.h.
              EXPECT_LE(worst, (4 + std::sqrt(896.0)) * 0x1p-24 * 896 * 9.1 * 6)
                  << way.name << " rows " << rows << " n " << n << " group " << group;
            }
          }
        }
}

/// Rows of bf16 that are not rounded, by every way and every division of K: the f32 sums of exact products, for every
/// kind of remainder; some columns against double.
TEST(int4_linear, exact_rows_of_bf16_are_multiplied_exactly) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  StepParams params;
  Stream s(Device::cuda(0), pool, &params);
  for (const auto& [rows, n, k, group] : {std::array<std::int64_t, 4>{9, 77, 96, 32},
                                          {64, 4112, 192, 64},
                                          {65, 16, 64, 64},
                                          {97, 200, 640, 128},
                                          {193, 1035, 1056, 32}})
    for (const bool offsets : {false, true}) {
      const Problem host(rows, n, k, group);
      const OnGpu gpu(s, host, offsets);
      OwnedTensor x(Spec{{rows, k}, DType::bf16});
      for (std::int64_t i = 0; i < x.tensor.size(); ++i)
        x.tensor.ptr<bf16>()[i] = bf16(static_cast<float>(Rng{1, 1}.normal(static_cast<std::uint64_t>(i))));
      const OwnedTensor xs = upload(s, x.tensor), to(Spec{{rows, n}, DType::f32}, s.device());
      const Values packed = contract::values_of(host.packed.tensor), scale = contract::values_of(host.scale.tensor),
                   offset = offsets ? scale : Values{};
      const auto compare = [&](const std::string& how) {
        const OwnedTensor back = download(s, to.tensor);
        for (std::int64_t j = n % 7; j < n; j += 7)
          for (std::int64_t r = rows % 5; r < rows; r += 5) {
            double want = 0, size = 0;
            for (std::int64_t d = 0; d < k; ++d) {
              const double v = static_cast<double>(static_cast<float>(x.tensor.ptr<bf16>()[r * k + d]));
              const auto w = contract::int4_weight(packed, scale, offset, j, d);
              want += v * w.value, size += std::fabs(v) * w.size;
            }
            const double allowed = (4 + std::sqrt(static_cast<double>(k))) * 0x1p-24 * size;
            EXPECT_NEAR(static_cast<double>(back.tensor.ptr<float>()[r * n + j]), want, allowed)
                << how << ", row " << r << ", column " << j << " of " << rows << "x" << n << "x" << k
                << (offsets ? " with offsets" : "");
          }
        return bytes_of(back);
      };
      const Int4Linear::Args args{.exact = true, .out = DType::f32, .constant_weights = true};
      const int4::Scratch scratch{gpu.values.tensor, gpu.steps.tensor, gpu.sums.tensor};
      for (const auto& way : cuda::int4_ways(s, cuda::int4_shape(s, to.tensor, xs.tensor, gpu.w, {}, args))) {
        cuda::int4_linear_by(way.id, s, to.tensor, xs.tensor, gpu.w, {}, {}, scratch, args);
        compare(std::string(way.name));
      }
      if (!cuda::fits_widened(s, xs.tensor, gpu.w)) continue;
      for (auto tile : cuda::widened_tiles(true))
        for (const int splits : {1, 2, 3, 8}) {
          if (splits * 64 > k) continue;
          tile.splits = splits;
          std::vector<std::byte> first;
          for (const bool constant : {true, false, true}) {
            cuda::int4_linear_widened(tile, s, to.tensor, xs.tensor, gpu.w, {}, {},
                                      {.exact = true, .out = DType::f32, .constant_weights = constant});
            const auto bytes = compare(cuda::name_of(tile));
            if (first.empty()) first = bytes;
            EXPECT_EQ(first, bytes);
          }
        }
    }
}

/// Many rows of bf16 on Hopper: weights are widened to bf16, in registers or in memory, there in one piece or several,
/// and x is not rounded. Every kind of remainder; some columns against double.
TEST(int4_linear, many_rows_of_bf16_are_multiplied_by_widened_weights) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  StepParams params;
  Stream s(Device::cuda(0), pool, &params);
  for (const auto& [rows, n, k, group] : {std::array<std::int64_t, 4>{33, 77, 96, 32},
                                          {64, 4112, 192, 64},
                                          {65, 16, 64, 64},
                                          {97, 200, 640, 128},
                                          {129, 1035, 160, 32},
                                          {256, 2064, 1024, 128},
                                          {300, 1040, 1024, 64},
                                          {256, 16900, 160, 32},  // some rows more than 132 tiles of 128
                                          {800, 4112, 8192, 64}})
    for (const bool offsets : {false, true}) {
      const Problem host(rows, n, k, group);
      const OnGpu gpu(s, host, offsets);
      OwnedTensor x(Spec{{rows, k}, DType::bf16}), y(Spec{{rows, n}, DType::bf16}), bias(Spec{{n}, DType::bf16});
      const auto fill = [](const Tensor& t, std::uint64_t seed) {
        for (std::int64_t i = 0; i < t.size(); ++i)
          t.ptr<bf16>()[i] = bf16(static_cast<float>(Rng{seed, 1}.normal(static_cast<std::uint64_t>(i))));
      };
      fill(x.tensor, 1), fill(bias.tensor, 2), fill(y.tensor, 3);
      const OwnedTensor xs = upload(s, x.tensor), residual = upload(s, y.tensor), b = upload(s, bias.tensor),
                        to(y.tensor.spec(), s.device()), nothing(y.tensor.spec());
      const Values packed = contract::values_of(host.packed.tensor), scale = contract::values_of(host.scale.tensor),
                   offset = offsets ? scale : Values{};
      const auto at = [](const OwnedTensor& t, std::int64_t i) {
        return static_cast<double>(static_cast<float>(t.tensor.ptr<bf16>()[i]));
      };
      struct Wanted {
        std::int64_t row, col;
        double product, terms;
      };
      std::vector<Wanted> wanted;
      for (std::int64_t j = n % 97 - 1; j < n; j += 97)  // includes the last one
        for (std::int64_t r = rows % 7 - 1 < 0 ? 6 : rows % 7 - 1; r < rows; r += 7) {
          Wanted w{r, j, 0, 0};
          for (std::int64_t d = 0; d < k; ++d) {
            const double v = at(x, r * k + d) * contract::int4_weight(packed, scale, offset, j, d);
            w.product += v, w.terms += std::fabs(v);
          }
          wanted.push_back(w);
        }
      // Weights and the result are rounded to bf16, or on another GPU x to 8 bits per group.
      const auto compare = [&](bool finished, const std::string& how) {
        const OwnedTensor back = download(s, to.tensor);
        for (const auto& w : wanted) {
          const double sum = w.product + (finished ? at(bias, w.col) : 0),
                       want = finished ? std::max(sum, 0.0) + at(y, w.row * n + w.col) : sum;
          const double allowed =
              0x1p-8 * (w.terms + (finished ? std::fabs(at(bias, w.col)) : 0) + std::fabs(want)) + 0x1p-9;
          if (std::fabs(at(back, w.row * n + w.col) - want) <= allowed) continue;
          ADD_FAILURE() << how << ": " << at(back, w.row * n + w.col) << " is not " << want << " in row " << w.row
                        << ", column " << w.col << " of " << rows << "x" << n << "x" << k;
          break;
        }
        return bytes_of(back);
      };
      const int4::Scratch scratch{gpu.values.tensor, gpu.steps.tensor, gpu.sums.tensor};
      const Int4Linear::Args args{.activation = Int4Activation::relu, .out = DType::bf16, .constant_weights = true};
      cuda::int4_linear(s, to.tensor, xs.tensor, gpu.w, b.tensor, residual.tensor, scratch, args);
      compare(true, "as chosen");
      for (const auto& way :
           cuda::int4_ways(s, cuda::int4_shape(s, to.tensor, xs.tensor, gpu.w, residual.tensor, args))) {
        if (!way.widened) continue;
        copy(s, to.tensor, nothing.tensor);
        cuda::int4_linear_by(way.id, s, to.tensor, xs.tensor, gpu.w, b.tensor, residual.tensor, scratch, args);
        compare(true, std::string(way.name));
      }
      if (rows > 300 || !cuda::fits_widened(s, xs.tensor, gpu.w)) continue;
      for (auto tile : cuda::widened_tiles(false))
        for (int splits : {1, 2, 3, 8}) {
          if (splits * 64 > k || tile.cols >= 2 * rows) continue;
          tile.splits = splits;
          std::vector<std::byte> first;
          for (const bool constant : {true, false, true}) {
            copy(s, to.tensor, nothing.tensor);
            cuda::int4_linear_widened(tile, s, to.tensor, xs.tensor, gpu.w, {}, {}, {.constant_weights = constant});
            const auto bytes = compare(false, cuda::name_of(tile));
            if (first.empty()) first = bytes;
            EXPECT_EQ(first, bytes);
          }
        }
    }
}

/// One row of x for every way, including those that require K to be a multiple of 256: types, groups and offsets, and
/// all kinds of groups. Against double.
TEST(int4_linear, ways_of_one_row_agree_with_double) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  StepParams params;
  Stream s(Device::cuda(0), pool, &params);
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (std::int64_t group : {32, 64, 128})
      for (auto [n, k] : {std::pair<std::int64_t, std::int64_t>{64, 256}, {96, 1280}, {128, 4096}})
        for (bool offsets : {false, true}) {
          Problem host(1, n, k, group, dtype);
          for (std::int64_t i = 0; i < k; ++i) {
            const auto kind = i / group % 6;
            if (kind == 1) host.set(i, 0);
            else if (kind == 2) host.set(i, i % 2 ? -1.3f : 1.3f);
            else if (kind == 3) host.set(i, i % group == 9 ? 1.3f : 0.65f);  // 63.5 steps
            else if (kind == 4) host.set(i, host.x.tensor.dtype() == DType::f16 ? 0 : i % 2 ? 0x1p-110f : -0x1p-101f);
            else if (kind == 5 && i % group == 31) host.set(i, -4000);
          }
          OnGpu gpu(s, host, offsets);
          const Values w = contract::values_of(host.packed.tensor), scale = contract::values_of(host.scale.tensor),
                       offset = offsets ? scale : Values{};
          const auto x = contract::int4_inputs(contract::values_of(host.x.tensor), 0, k, group, false);
          std::vector<double> want(static_cast<std::size_t>(n)), terms(want);
          for (std::int64_t j = 0; j < n; ++j)
            for (std::int64_t d = 0; d < k; ++d) {
              const double v = contract::int4_weight(w, scale, offset, j, d) * x[static_cast<std::size_t>(d)];
              want[static_cast<std::size_t>(j)] += v;
              // Offsets and the rest of a weight are summed separately.
              terms[static_cast<std::size_t>(j)] +=
                  std::fabs(v) + (offsets ? std::fabs(2.1 * x[static_cast<std::size_t>(d)]) : 0);
            }
          int direct = 0, strips = 0;
          for (const auto& way : gpu.ways(s)) {
            direct += way.name.starts_with("direct"), strips += way.name.starts_with("strip");
            std::vector<std::byte> first;
            for (bool constant : {false, true, true}) {
              gpu.run(way.id, s, gpu.x.tensor, gpu.y.tensor, constant);
              const OwnedTensor back = download(s, gpu.y.tensor);
              if (first.empty()) first = bytes_of(back);
              else EXPECT_EQ(first, bytes_of(back)) << way.name;
              for (std::int64_t j = 0; j < n; ++j)
                EXPECT_NEAR(back.tensor.ptr<float>()[j], want[static_cast<std::size_t>(j)],
                            (4 + std::sqrt(static_cast<double>(k))) * 0x1p-24 * terms[static_cast<std::size_t>(j)])
                    << way.name << " " << dtype_name(dtype) << " n " << n << " k " << k << " group " << group << " row "
                    << j;
            }
          }
          EXPECT_EQ(direct, strips == 0 ? 0 : n % 64 == 0 ? 3 : 2);
          for (float bad : {NAN, INFINITY})
            for (std::int64_t at : {std::int64_t{0}, std::int64_t{255}, k - 1}) {
              Problem marred(1, n, k, group, dtype);
              marred.set(at, bad);
              OnGpu there(s, marred, offsets);
              for (const auto& way : there.ways(s)) {
                there.run(way.id, s, there.x.tensor, there.y.tensor, true);
                const OwnedTensor back = download(s, there.y.tensor);
                for (std::int64_t j = 0; j < n; ++j)
                  EXPECT_FALSE(std::isfinite(back.tensor.ptr<float>()[j])) << way.name << " " << at;
              }
            }
        }
}

/// Products that each read what the preceding one writes, while their weights are read before it has ended.
TEST(int4_linear, a_chain_of_products_waits_for_its_inputs) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  StepParams params;
  Stream s(Device::cuda(0), pool, &params);
  constexpr std::int64_t kSize = 2048;
  constexpr int kProducts = 8;
  Problem host(1, kSize, kSize, 64);
  OnGpu gpu(s, host, false);
  std::vector<OwnedTensor> y;
  for (int i = 0; i < kProducts; ++i) y.emplace_back(gpu.y.tensor.spec(), s.device());
  const OwnedTensor nothing(gpu.y.tensor.spec());
  std::fill_n(nothing.tensor.ptr<float>(), kSize, NAN);
  for (const auto& way : gpu.ways(s)) {
    std::vector<std::byte> first;
    for (int round = 0; round < 20; ++round) {
      for (const auto& t : y) copy(s, t.tensor, nothing.tensor);
      for (int i = 0; i < kProducts; ++i) {
        const auto& to = y[static_cast<std::size_t>(i)].tensor;
        gpu.run(way.id, s, i ? View(y[static_cast<std::size_t>(i - 1)].tensor) : View(gpu.x.tensor), to, round > 0);
      }
      const OwnedTensor back = download(s, y.back().tensor);
      EXPECT_TRUE(std::isfinite(back.tensor.ptr<float>()[0])) << way.name;
      if (first.empty()) first = bytes_of(back);
      else EXPECT_EQ(first, bytes_of(back)) << way.name << ", round " << round;
    }
  }
}

/// `n` bytes on a GPU, `shift` bytes after a multiple of 16.
struct Shifted {
  OwnedTensor space;
  Tensor tensor;
  Shifted(Stream& s, View from, std::int64_t shift)
      : space({{from.bytes() + 16}, DType::u8}, s.device()),
        tensor(space.tensor.ptr<std::uint8_t>() + shift, from.spec(), s.device()) {
    copy(s, tensor, from);
  }
};

TEST(int4_linear, where_operands_lie_does_not_change_bits) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  StepParams params;
  Stream s(Device::cuda(0), pool, &params);
  for (const DType inputs : {DType::f32, DType::bf16})
    for (const bool offsets : {false, true}) {
      Problem host(1, 64, 512, 32, inputs);
      OnGpu gpu(s, host, offsets);
      const Shifted packed(s, gpu.packed.tensor, 1), scale(s, gpu.scale.tensor, 2),
          x(s, gpu.x.tensor, dtype_bytes(inputs));
      for (const auto& way : gpu.ways(s)) {
        gpu.w = {gpu.packed.tensor, gpu.scale.tensor, offsets ? View(gpu.scale.tensor) : View()};
        gpu.run(way.id, s, gpu.x.tensor, gpu.y.tensor, true);
        const auto want = bytes_of(download(s, gpu.y.tensor));
        gpu.run(way.id, s, x.tensor, gpu.y.tensor, true);
        EXPECT_EQ(want, bytes_of(download(s, gpu.y.tensor))) << way.name << ": x at another address";
        gpu.w = {packed.tensor, scale.tensor, offsets ? View(scale.tensor) : View()};
        gpu.run(way.id, s, x.tensor, gpu.y.tensor, true);
        EXPECT_EQ(want, bytes_of(download(s, gpu.y.tensor))) << way.name << ": all operands at other addresses";
      }
    }
}

TEST(int4_linear, a_chosen_way_is_the_way_taken) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  StepParams params;
  Stream s(Device::cuda(0), pool, &params);
  const cuda::Int4Shape shape{.rows = 1, .n = 4096, .k = 4096, .group = 32};
  const int built_in = cuda::int4_way(s, shape), other = cuda::int4_ways(s, shape).back().id;
  ASSERT_NE(built_in, other);
  const cuda::Int4Shape small{.rows = 1, .n = 768, .k = 4096, .group = 32};
  const int built_in_of_small = cuda::int4_way(s, small);
  const auto key = [](const cuda::Int4Shape& shape_of_key) {
    const auto fields = cuda::fields_of(shape_of_key);
    return WayKey{"int4_linear", {fields.begin(), fields.end()}};
  };
  const std::string name(cuda::int4_way_names()[static_cast<std::size_t>(other)]);
  s.set_ways(std::make_shared<const Ways>(
      WayNames{.calls = {{key(shape), name}, {key(small), "no such way"}}, .preferred = {}}));
  EXPECT_EQ(cuda::int4_way(s, shape), other);
  EXPECT_EQ(cuda::int4_way(s, small), built_in_of_small) << "a way that is none is not taken";
  s.set_ways(nullptr);
  EXPECT_EQ(cuda::int4_way(s, shape), built_in);
}
#endif

TEST(int4_linear, says_what_does_not_fit) {
  const Spec x{{2, 64}, DType::f32}, packed{{16, 32}, DType::u8}, scale{{16, 2}, DType::bf16};
  const auto infer = [](Spec a, Spec b, Spec c, Spec d = {}, Spec e = {}) {
    return Int4Linear::infer(a, b, c, d, e, {}, {});
  };
  EXPECT_EQ(infer(x, packed, scale).shape, (Shape{2, 16}));
  EXPECT_THROW(infer({{2, 96}, DType::f32}, packed, scale), Error);
  EXPECT_THROW(infer({{2, 64}, DType::i32}, packed, scale), Error);
  EXPECT_THROW(infer(x, {{16, 32}, DType::i8}, scale), Error);
  EXPECT_THROW(infer(x, packed, {{16, 3}, DType::bf16}), Error);  // 64 / 3
  EXPECT_THROW(infer(x, packed, {{16, 4}, DType::bf16}), Error);  // groups of 16
  EXPECT_THROW(infer(x, packed, {{16, 0}, DType::bf16}), Error);
  EXPECT_THROW(infer(x, packed, {{15, 2}, DType::bf16}), Error);
  EXPECT_THROW(infer(x, packed, scale, {{16, 1}, DType::bf16}), Error);
  EXPECT_THROW(infer(x, packed, scale, {}, {{15}, DType::f32}), Error);
  EXPECT_THROW(Int4Linear::infer(x, packed, scale, {}, {}, {}, {.out = DType::i32}), Error);
}

}  // namespace
}  // namespace hpcdl
