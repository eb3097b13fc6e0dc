// Every way to compute a product on a GPU, at shapes around the edges of tiles, against loops in double.

#include "hpcdl/ops/matmul/device_gemm.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/core/error.h"
#include "hpcdl/core/tolerance.h"
#include "hpcdl/core/ways.h"
#include "hpcdl/ops/activations.h"
#include "hpcdl/ops/matmul/cublas_lt.h"
#include "hpcdl/rng.h"

#if HPCDL_CUDA

namespace hpcdl::cuda {
namespace {

struct Product {
  std::int64_t m, n, k, batch = 1;
  bool transpose_a = false, transpose_b = false;
  DType out = DType::none;  // none: that of the operands
  bool bias = false, z = false, residual = false, inside = false, accumulate = false, is_z = false;
  GemmActivation activation = GemmActivation::none;
  float scale = 1;
  bool shared_b = false;
  bool tf32 = false;
};

/// The error of a product of two f32 operands, each of which loses less than 2^-10 of itself when truncated to TF32's
/// 11 significant bits.
constexpr double kCut = 0x1p-9 + 0x1p-20;

double slope(GemmActivation a, double z) {
  constexpr double kStep = 1e-5;
  return a == GemmActivation::relu
             ? (z > 0 ? 1 : 0)
             : (contract::activated(a, z + kStep) - contract::activated(a, z - kStep)) / (2 * kStep);
}

float get(const void* p, DType d, std::int64_t i) {
  if (d == DType::f32) return static_cast<const float*>(p)[i];
  return d == DType::bf16 ? static_cast<float>(static_cast<const bf16*>(p)[i])
                          : static_cast<float>(static_cast<const f16*>(p)[i]);
}
void put(void* p, DType d, std::int64_t i, float v) {
  if (d == DType::f32) static_cast<float*>(p)[i] = v;
  else if (d == DType::bf16) static_cast<bf16*>(p)[i] = bf16(v);
  else static_cast<f16*>(p)[i] = f16(v);
}

/// A matrix on both sides with row stride `ld`; the elements between rows must not change.
struct Both {
  DType dtype;
  std::int64_t rows, cols, ld;
  OwnedTensor host, device;

  Both() = default;
  Both(Stream& s, DType d, std::int64_t r, std::int64_t c, std::int64_t apart, std::uint64_t seed)
      : dtype(d), rows(r), cols(c), ld(apart), host({{r * apart}, d}), device({{r * apart}, d}, s.device()) {
    for (std::int64_t i = 0; i < r * apart; ++i)
      put(host.tensor.data(), d, i, static_cast<float>(Rng{seed, 0}.normal(static_cast<std::uint64_t>(i))));
    reset(s);
  }
  explicit operator bool() const { return host.tensor.data() != nullptr; }
  void reset(Stream& s) const { copy(s, device.tensor, host.tensor); }
  double at(std::int64_t r, std::int64_t c) const {
    return static_cast<double>(get(host.tensor.data(), dtype, r * ld + c));
  }
  OwnedTensor back(Stream& s) const {
    OwnedTensor t(host.tensor.spec());
    copy(s, t.tensor, device.tensor);
    return t;
  }
};

struct Case {
  Product p;
  Both a, b, d, z, bias, residual;
  Gemm gemm;
  std::vector<double> want, want_z, magnitude;

  Case(Stream& s, const Product& given, DType type, std::int64_t pad) : p(given) {
    const DType out = p.out == DType::none ? type : p.out;
    const auto ld = [&](std::int64_t cols) { return (cols + 7) / 8 * 8 + pad; };
    const std::int64_t ac = p.transpose_a ? p.m : p.k, ar = p.transpose_a ? p.k : p.m, bc = p.transpose_b ? p.k : p.n,
                       br = p.transpose_b ? p.n : p.k;
    const std::int64_t b_batch = p.shared_b ? 1 : p.batch;
    a = Both(s, type, ar * p.batch, ac, ld(ac), 1), b = Both(s, type, br * b_batch, bc, ld(bc), 2),
    d = Both(s, out, p.m * p.batch, p.n, ld(p.n), 3);
    gemm = {.m = p.m,
            .n = p.n,
            .k = p.k,
            .batch = p.batch,
            .compute = type,
            .a = {a.device.tensor.data(), type, a.ld, p.transpose_a, ar * a.ld},
            .b = {b.device.tensor.data(), type, b.ld, p.transpose_b, p.shared_b ? 0 : br * b.ld},
            .out = {.d = d.device.tensor.data(),
                    .dtype = out,
                    .ld = d.ld,
                    .batch_stride = p.m * d.ld,
                    .accumulate = p.accumulate,
                    .scale = p.scale,
                    .activation = p.activation},
            .tf32 = p.tf32};
    if (p.bias) bias = Both(s, DType::f32, 1, p.n, p.n, 4), gemm.out.bias = bias.device.tensor.data();
    if (p.z) z = Both(s, out, p.m, p.n, ld(p.n), 5), gemm.out.z = z.device.tensor.data(), gemm.out.z_ld = z.ld;
    if (p.residual) {
      residual = Both(s, out, p.m * p.batch, p.n, ld(p.n), 6);
      gemm.out.residual = residual.device.tensor.data(), gemm.out.residual_ld = residual.ld,
      gemm.out.residual_batch_stride = p.m * residual.ld;
      gemm.out.residual_inside = p.inside, gemm.out.residual_is_z = p.is_z;
    }
    expect();
  }

  void expect() {
    for (std::int64_t i = 0; i < p.batch * p.m; ++i)
      for (std::int64_t j = 0; j < p.n; ++j) {
        const std::int64_t s = i / p.m, r = i % p.m, sb = p.shared_b ? 0 : s;
        double sum = 0, size = 0;
        for (std::int64_t l = 0; l < p.k; ++l) {
          const double x = (p.transpose_a ? a.at(s * p.k + l, r) : a.at(i, l)) *
                           (p.transpose_b ? b.at(sb * p.n + j, l) : b.at(sb * p.k + l, j));
          sum += x, size += std::abs(x);
        }
        double v = sum * static_cast<double>(p.scale) + (p.bias ? bias.at(0, j) : 0);
        if (p.residual && p.inside) v += residual.at(i, j);
        want_z.push_back(v);
        if (p.is_z) v *= slope(p.activation, residual.at(i, j));
        else
          v = contract::activated(p.activation, v) + (p.residual && !p.inside ? residual.at(i, j) : 0) +
              (p.accumulate ? d.at(i, j) : 0);
        want.push_back(v);
        magnitude.push_back(size * std::abs(static_cast<double>(p.scale)) + 20);
      }
  }

  /// Checks that elements are within bounds and that nothing is written between rows.
  void check(const Both& x, const OwnedTensor& got, const std::vector<double>& expected, std::string_view what) const {
    int wrong = 0;
    for (std::int64_t i = 0; i < x.rows; ++i) {
      for (std::int64_t j = 0; j < p.n; ++j) {
        const auto at = static_cast<std::size_t>(i * p.n + j);
        const double v = static_cast<double>(get(got.tensor.data(), x.dtype, i * x.ld + j));
        const double allowed =
            1.2 * (allowed_error(x.dtype, std::abs(expected[at]), static_cast<double>(p.k), magnitude[at]) +
                   (p.tf32 ? kCut * magnitude[at] : 0));  // the derivative of gelu reaches 1.13
        if (!(std::abs(v - expected[at]) <= allowed) && ++wrong <= 3)
          ADD_FAILURE() << what << " (" << i << ", " << j << "): expected " << expected[at] << ", got " << v
                        << ", allowed " << allowed;
      }
      for (std::int64_t j = p.n; j < x.ld; ++j)
        ASSERT_EQ(get(got.tensor.data(), x.dtype, i * x.ld + j), get(x.host.tensor.data(), x.dtype, i * x.ld + j))
            << what << " wrote after the end of row " << i;
    }
    EXPECT_EQ(wrong, 0) << what;
  }

  OwnedTensor run(Stream& s, const std::function<void()>& way) {
    d.reset(s);
    if (z) z.reset(s);
    way();
    return d.back(s);
  }
  void verify(Stream& s, const std::function<void()>& way) {
    const OwnedTensor first = run(s, way);
    check(d, first, want, "D");
    if (z) check(z, z.back(s), want_z, "z");
    const OwnedTensor second = run(s, way);
    EXPECT_EQ(0, std::memcmp(first.tensor.data(), second.tensor.data(), static_cast<std::size_t>(first.tensor.bytes())))
        << "two runs differ";
  }
};

constexpr auto kGelu = GemmActivation::gelu_tanh;
const Product kProducts[] = {
    {.m = 128, .n = 256, .k = 64},
    {.m = 129,
     .n = 257,
     .k = 65,
     .transpose_b = true,
     .residual = true,
     .inside = true,
     .activation = GemmActivation::relu},
    {.m = 255, .n = 136, .k = 136, .transpose_a = true, .out = DType::f32},
    {.m = 64, .n = 72, .k = 200, .transpose_a = true, .transpose_b = true, .accumulate = true},
    {.m = 300, .n = 392, .k = 128, .transpose_b = true, .bias = true, .z = true, .activation = kGelu},
    {.m = 300,
     .n = 392,
     .k = 192,
     .bias = true,
     .z = true,
     .residual = true,
     .activation = GemmActivation::gelu_erf,
     .scale = 0.5f},
    {.m = 200, .n = 130, .k = 1024, .transpose_a = true, .out = DType::f32, .accumulate = true},
    {.m = 96, .n = 160, .k = 1000, .residual = true},
    {.m = 33, .n = 80, .k = 72, .batch = 5, .transpose_b = true, .scale = 0.125f},
    {.m = 140, .n = 70, .k = 640, .batch = 2, .residual = true, .shared_b = true},
    {.m = 260, .n = 264, .k = 320, .residual = true, .is_z = true, .activation = kGelu},
    {.m = 100,
     .n = 144,
     .k = 96,
     .transpose_b = true,
     .residual = true,
     .is_z = true,
     .activation = GemmActivation::gelu_erf},
    {.m = 1, .n = 512, .k = 264, .transpose_b = true, .out = DType::f32, .bias = true},
    {.m = 1, .n = 200, .k = 2600, .transpose_b = true, .residual = true},
    {.m = 3, .n = 136, .k = 1032, .transpose_b = true, .bias = true, .z = true, .activation = kGelu},
    {.m = 200, .n = 264, .k = 1000, .transpose_b = true, .residual = true, .activation = GemmActivation::gelu_erf},
};

/// g without an epilogue.
Gemm plain_product(Gemm g) {
  g.tf32 = true, g.out = {.d = g.out.d, .dtype = g.out.dtype, .ld = g.out.ld, .batch_stride = g.out.batch_stride};
  return g;
}

class DeviceGemm : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  }
  Pool pool{1};
};

TEST_P(DeviceGemm, EveryCandidateIsRight) {
  Stream s(Device{DeviceKind::cuda, 0}, pool);
  for (const DType type : {DType::bf16, DType::f16, DType::f32}) {
    Case c(s, kProducts[GetParam()], type, 8);
    const auto span = gemm_candidates(s, c.gemm, true);
    for (const auto& way : std::vector(span.begin(), span.end())) {
      SCOPED_TRACE(std::string(dtype_name(type)) + " " + std::string(way.name));
      c.verify(s, [&, id = way.id] { gemm_with(s, c.gemm, id); });
    }
  }
}

// Addresses, strides and types that the copy engine does not support, small and large.
TEST_P(DeviceGemm, AnyOperandIsTaken) {
  Stream s(Device{DeviceKind::cuda, 0}, pool);
  Product large = kProducts[GetParam()];
  large.m += 160, large.n += 160, large.k += 163;
  for (const DType type : {DType::bf16, DType::f32}) {
    Case c(s, kProducts[GetParam()], type, 3);
    c.verify(s, [&] { gemm(s, c.gemm); });
    Case l(s, large, type, 3);
    l.verify(s, [&] { gemm(s, l.gemm); });
  }
}

// Large f32 products use the library, and epilogues that it does not support run as a separate pass: with the same bits
// whether an arena aligns them to 16 bytes or to 256. It truncates operands to TF32 only if told so.
TEST_P(DeviceGemm, LargeProductsOfF32) {
  Stream s(Device{DeviceKind::cuda, 0}, pool);
  Product large = kProducts[GetParam()];
  large.m += 160, large.n += 160, large.k += 160;
  Case exact(s, large, DType::f32, 8);
  exact.verify(s, [&] { gemm(s, exact.gemm); });
  const auto bits = exact.run(s, [&] { gemm(s, exact.gemm); });
  large.tf32 = true;
  Case cut(s, large, DType::f32, 8);
  cut.verify(s, [&] { gemm(s, cut.gemm); });
  const auto fewer = cut.run(s, [&] { gemm(s, cut.gemm); });
  const auto told = exact.run(s, [&] {
    const WithNumerics set(s, {.products = F32Products::tf32});
    gemm(s, exact.gemm);
  });
  const auto same = [](const OwnedTensor& a, const OwnedTensor& b) {
    return std::memcmp(a.tensor.data(), b.tensor.data(), static_cast<std::size_t>(a.tensor.bytes())) == 0;
  };
  EXPECT_TRUE(same(told, fewer)) << "set for a stream or for one product";
  EXPECT_NE(same(bits, fewer), fits_cublas_lt(s, plain_product(exact.gemm)))
      << "TF32 must be used if it was requested and the library is present";
}

TEST_P(DeviceGemm, CapturedGivesTheSameBits) {
  Stream s(Device{DeviceKind::cuda, 0}, pool);
  Case c(s, kProducts[GetParam()], DType::bf16, 8);
  const auto first = c.run(s, [&] { gemm(s, c.gemm); });
  Capture::begin(s);
  gemm(s, c.gemm);
  const Capture captured = Capture::end(s);
  const auto second = c.run(s, [&] { captured.launch(s); });
  EXPECT_EQ(0, std::memcmp(first.tensor.data(), second.tensor.data(), static_cast<std::size_t>(first.tensor.bytes())));
}

// Copies and sums of such products that do not fit the workspace at once: blocks of rows, of columns, of both.
TEST(DeviceGemmBlocks, ProductsThatNoCopyHasRoomFor) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  Stream s(Device{DeviceKind::cuda, 0}, pool);
  const Product products[] = {
      {.m = 4300, .n = 2047, .k = 67, .transpose_b = true, .bias = true, .z = true, .activation = kGelu},
      {.m = 70, .n = 66003, .k = 129, .transpose_b = true, .residual = true, .activation = GemmActivation::gelu_erf},
      {.m = 70003, .n = 70, .k = 131, .transpose_a = true, .accumulate = true, .scale = 0.5f},
      {.m = 1500, .n = 34001, .k = 33, .bias = true, .residual = true, .inside = true, .activation = kGelu},
  };
  for (const auto& p : products) {
    SCOPED_TRACE(fmt::format("{}x{}x{}", p.m, p.n, p.k));
    Case c(s, p, DType::bf16, 3);
    c.verify(s, [&] { gemm(s, c.gemm); });
  }
}

// A few rows times large weights: a stored column by column, rows whose length is odd or no multiple of eight.
TEST(DeviceGemmRows, FewRowsOfAnyLayoutAndLength) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  Stream s(Device{DeviceKind::cuda, 0}, pool);
  const std::pair<DType, Product> products[] = {
      {DType::f32, {.m = 3, .n = 4100, .k = 4098, .transpose_a = true}},
      {DType::f32, {.m = 8, .n = 4097, .k = 4099, .transpose_a = true, .accumulate = true}},
      {DType::bf16, {.m = 2, .n = 2100, .k = 2834, .transpose_b = true, .bias = true}},
      {DType::bf16, {.m = 16, .n = 2047, .k = 3072, .transpose_b = true, .bias = true}},
      {DType::bf16, {.m = 16, .n = 2048, .k = 3074, .transpose_b = true, .residual = true}},
  };
  for (const auto& [type, p] : products) {
    SCOPED_TRACE(fmt::format("{} {}x{}x{}", dtype_name(type), p.m, p.n, p.k));
    for (const std::int64_t pad : {0, 2, 3}) {
      Case c(s, p, type, pad);
      c.verify(s, [&] { gemm(s, c.gemm); });
    }
  }
}

// A few rows times weights of another type: f32 with unchanged 16-bit weights, 16 bits with rounded f32 weights.
TEST(DeviceGemmMixed, FewRowsReadWeightsOfAnyType) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  Stream s(Device{DeviceKind::cuda, 0}, pool);
  for (const auto& [x, w] : {std::pair(DType::f32, DType::bf16), std::pair(DType::f32, DType::f16),
                             std::pair(DType::bf16, DType::f32), std::pair(DType::f16, DType::f32)})
    for (const std::int64_t rows : {1, 4})
      for (const std::int64_t pad : {8, 3}) {
        SCOPED_TRACE(fmt::format("{} x {}, {} rows, {} apart", dtype_name(x), dtype_name(w), rows, pad));
        const Product p{.m = rows, .n = 150, .k = 700, .transpose_b = true, .bias = true};
        Case c(s, p, x, pad);
        c.b = Both(s, w, c.b.rows, c.b.cols, c.b.ld, 2);
        if (w == DType::f32)  // numbers between those that x's type represents
          for (std::int64_t i = 0; i < c.b.host.tensor.size(); ++i) {
            OwnedTensor rounded({{1}, x});
            put(rounded.tensor.data(), x, 0, c.b.host.tensor.ptr<float>()[i]);
            c.b.host.tensor.ptr<float>()[i] = get(rounded.tensor.data(), x, 0) * (1 + 0x1p-12f);
          }
        c.b.reset(s);
        c.gemm.b.data = c.b.device.tensor.data(), c.gemm.b.dtype = w;
        if (w != DType::f32) c.want.clear(), c.want_z.clear(), c.magnitude.clear(), c.expect();
        c.verify(s, [&] { gemm(s, c.gemm); });
      }
}

TEST(DeviceGemmChecks, RefusesACandidateThatIsNone) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  Stream s(Device{DeviceKind::cuda, 0}, pool);
  Case c(s, kProducts[0], DType::bf16, 8);
  EXPECT_THROW(gemm_with(s, c.gemm, 100000), Error);
  Case odd(s, kProducts[0], DType::bf16, 3);
  EXPECT_LT(gemm_candidates(s, odd.gemm).size(), 3u);  // none of them a tile
  EXPECT_THROW(gemm_with(s, odd.gemm, 2), Error);
}

TEST(DeviceGemmChecks, ComputesAsTheTableSays) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  Stream s(Device{DeviceKind::cuda, 0}, pool);
  for (const DType type : {DType::bf16, DType::f32}) {
    Case c(s, kProducts[0], type, 8);
    const auto fields = fields_of(c.gemm);
    const WayKey key{"gemm", {fields.begin(), fields.end()}};
    const auto span = gemm_candidates(s, c.gemm, true);
    for (const auto& way : std::vector(span.begin(), span.end())) {
      s.set_ways(std::make_shared<const Ways>(WayNames{.calls = {{key, std::string(way.name)}}, .preferred = {}}));
      EXPECT_EQ(gemm_choice(s, c.gemm), way.id) << way.name;
      WayNotes notes;
      const WithWayNotes with(s, notes);
      const auto got = c.run(s, [&] { gemm(s, c.gemm); }), want = c.run(s, [&] { gemm_with(s, c.gemm, way.id); });
      EXPECT_EQ(0, std::memcmp(got.tensor.data(), want.tensor.data(), static_cast<std::size_t>(got.tensor.bytes())))
          << way.name;
      ASSERT_EQ(notes.all().size(), 1u);
      EXPECT_EQ(notes.all().at(key).used, way.name);
    }
  }
  Case odd(s, kProducts[0], DType::bf16, 3);
  const int built_in = gemm_choice(s, odd.gemm);
  const auto all = gemm_ways();
  const auto tile = std::find_if(all.begin(), all.end(), [](const auto& name) { return name.starts_with("128x"); });
  ASSERT_NE(tile, all.end());
  s.set_ways(std::make_shared<const Ways>(WayNames{.calls = {}, .preferred = {{"gemm", *tile}}}));
  EXPECT_EQ(gemm_choice(s, odd.gemm), built_in) << "tiles cannot read these operands";
}

INSTANTIATE_TEST_SUITE_P(Products, DeviceGemm, ::testing::Range(0, static_cast<int>(std::size(kProducts))));

}  // namespace
}  // namespace hpcdl::cuda

#endif
