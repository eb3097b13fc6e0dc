#include "hpcdl/ops/quant_linear/quant_linear.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/core/error.h"
#include "hpcdl/ops/quant_linear/quant_linear.spec.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/every_isa.h"
#include "hpcdl/testing/op_spec.h"
#if HPCDL_CUDA
#include "hpcdl/ops/quant_linear/quant_decode.h"
#include "hpcdl/ops/quant_linear/quant_ways.h"
#include "hpcdl/testing/spec_ways.h"
#endif

namespace hpcdl {
namespace {

using enum QuantFormat;
using testing::Fill;
using testing::Input;
using Case = testing::OpSpec<QuantLinear>::Case;

constexpr std::int64_t kBelow = 60;    // bytes below it: scales in F16 are positive and below 1
constexpr std::int64_t kBelow1 = 128;  // scales in E8M0 below it are at most 1

bool is_rotated(QuantFormat f) { return quant_format_info(f).rotated; }

// Kernels of GPUs for few rows read operands as programs place them; others are rounded as for many rows.
#if HPCDL_CUDA
constexpr bool kAligned = true;
#else
constexpr bool kAligned = false;
#endif

struct More {
  bool bias = false, residual = false;
  DType out = DType::none;
};

Case product(QuantFormat f, Shape x, std::int64_t n, More more = {}) {
  const auto p = quant_parts(f, n, x[-1]);
  const auto input = [&](const Spec& s) {
    if (!s) return Input::none();
    if (s.dtype == DType::f32) return Input(s.shape).as(DType::f32).filled(Fill::positive).fixed();
    const bool is_e8m0 = f == mxfp4 && s == p.scale;
    return Input::indices(s.shape, s.dtype == DType::i8 ? 127 : is_e8m0 ? kBelow1 : kBelow).as(s.dtype);
  };
  // Tensor cores take rotated rows of x in its type: small integers are exact there.
  Input rows = is_rotated(f) ? Input::indices(x, 3).as(DType::none) : Input(x);
  rows.differentiable = true;
  Shape y = x;
  y[-1] = n;
  return {.in = {rows, input(p.codes), input(p.scale), input(p.outer), input(p.table),
                 more.bias ? Input({n}) : Input::none(), more.residual ? Input(y).as(more.out) : Input::none()},
          .args = {.format = f, .out = more.out},
          .aligned = kAligned};
}

const auto spec = testing::op<QuantLinear>({
    .cases = {product(nf4, {1, 64}, 1), product(nf4, {2, 192}, 17, {.bias = true}), product(nf4, {9, 64}, 67),
              product(nf4_double, {3, 5, 128}, 33), product(nf4_double, {1, 4160}, 9, {.residual = true}),
              product(int8, {7, 32}, 15), product(int8, {1, 96}, 16, {.bias = true, .residual = true}),
              product(int8, {11, 160}, 70), product(q8_0, {5, 32}, 31), product(q8_0, {8, 352}, 3, {.bias = true}),
              product(q8_0, {17, 64}, 130), product(q4_0, {1, 32}, 5), product(q4_0, {4, 416}, 19),
              product(q4_0, {10, 96}, 64, {.bias = true, .residual = true}), product(q4_k, {1, 256}, 2),
              product(q4_k, {6, 512}, 18), product(q4_k, {12, 768}, 65), product(q6_k, {2, 256}, 20),
              product(q6_k, {1, 1280}, 7), product(q6_k, {33, 256}, 81),
              product(nf4, {70, 320}, 40, {.residual = true, .out = DType::f32}),
              product(nf4_double, {16, 512}, 34, {.bias = true}), product(int8, {100, 288}, 20),
              product(q8_0, {31, 544}, 17, {.bias = true, .residual = true}), product(q4_0, {67, 544}, 33),
              product(q4_k, {64, 512}, 66, {.residual = true}), product(q6_k, {130, 512}, 9),
              product(fp4, {3, 192}, 9, {.bias = true}), product(fp4_double, {20, 256}, 12), product(nf4, {0, 64}, 8),
              product(q8_0, {3, 64}, 0),
              // Of more rows, rotated weights are rounded to the type of x, after sums that may be on
              // either side of a tie: EveryFormat compares their values.
              product(rot3, {1, 256}, 3), product(rot3, {7, 512}, 5, {.bias = true}),
              product(rot3, {2, 256}, 17, {.residual = true}), product(rot3, {3, 768}, 9),
              product(rot_ternary, {3, 512}, 2), product(rot_ternary, {8, 256}, 4, {.bias = true, .residual = true}),
              product(fp8, {1, 96}, 5), product(fp8, {9, 160}, 33, {.bias = true}), product(fp8, {40, 96}, 18),
              product(fp8_blocks, {1, 416}, 9), product(fp8_blocks, {2, 160}, 130, {.bias = true}),
              product(fp8_blocks, {9, 288}, 20, {.residual = true}), product(mxfp4, {8, 352}, 3, {.bias = true}),
              product(mxfp4, {17, 64}, 70), product(mxfp4, {1, 1024}, 18, {.residual = true})},
    .reference = contract::quant_linear_reference,
    .reduction = [](std::span<const Spec> in, const QuantLinear::Args&) { return std::max(in[0][-1], in[1][0]) + 2; },
});

#if HPCDL_CUDA
contract::QuantRounding rounding_of(cuda::QuantWay way) {
  return way == cuda::QuantWay::tiles  ? contract::QuantRounding::table
         : way == cuda::QuantWay::wide ? contract::QuantRounding::products
                                       : contract::QuantRounding::none;
}
/// Tensor cores read the codes themselves, and the table of NF4 rounded to the type of x, or products with scales.
contract::Reference reference_on_gpu(const Stream& s, std::span<const Spec> in, const void* args) {
  alignas(16) static std::byte somewhere[16];
  const auto view = [&](const Spec& of) { return of ? View(somewhere, of, s.device()) : View(); };
  const QuantMatrix w{static_cast<const QuantLinear::Args*>(args)->format,
                      {view(in[1]), view(in[2]), view(in[3]), view(in[4])}};
  const auto rounding = rounding_of(cuda::quant_way(s, view(in[0]), w));
  if (rounding == contract::QuantRounding::none) return {};
  if (rounding == contract::QuantRounding::table)
    return contract::with_args<QuantLinear::Args>([](auto out, auto of, const auto& a) {
      contract::quant_linear_reference_of(out, of, a, contract::QuantRounding::table);
    });
  return contract::with_args<QuantLinear::Args>([](auto out, auto of, const auto& a) {
    contract::quant_linear_reference_of(out, of, a, contract::QuantRounding::products);
  });
}
const auto registered = testing::references_on_gpu().emplace(QuantLinear::name, reference_on_gpu);
#endif

/// A matrix of any bytes whose scales are finite.
struct Drawn {
  QuantFormat format;
  QuantParts<OwnedTensor> own;

  Drawn(QuantFormat f, std::int64_t n, std::int64_t k) : format(f) {
    const auto parts = quant_parts(f, n, k);
    const auto info = quant_format_info(f);
    const Rng rng{static_cast<std::uint64_t>(f) + 1, 0};
    std::uint64_t draw = 0;
    for (const auto& [part, to] : {std::pair(parts.codes, &own.codes), std::pair(parts.scale, &own.scale),
                                   std::pair(parts.outer, &own.outer), std::pair(parts.table, &own.table)}) {
      if (!part) continue;
      *to = OwnedTensor(part);
      if (part.dtype == DType::f32)
        for (std::int64_t i = 0; i < part.size(); ++i)
          to->tensor.ptr<float>()[i] = static_cast<float>(rng.normal(draw++));
      else
        for (std::int64_t i = 0; i < part.size(); ++i)
          to->tensor.ptr<std::uint8_t>()[i] = static_cast<std::uint8_t>(rng.below(draw++, 256));
    }
    if (f == mxfp4)
      for (std::int64_t i = 0; i < parts.scale.size(); ++i)
        own.scale.tensor.ptr<std::uint8_t>()[i] = own.scale.tensor.ptr<std::uint8_t>()[i] % 64 + 64;
    if (!info.scales_in_blocks) return;
    auto* bytes = own.codes.tensor.ptr<std::uint8_t>();
    for (std::int64_t b = 0; b < own.codes.tensor.bytes(); b += info.block_bytes)
      for (const int at : f == q6_k ? std::vector{209} : f == q4_k ? std::vector{1, 3} : std::vector{1})
        bytes[b + at] = static_cast<std::uint8_t>((bytes[b + at] & 0x83) | 0x30);  // an exponent near that of 1/8
  }
  QuantMatrix matrix() const {
    return {format, {own.codes.tensor, own.scale.tensor, own.outer.tensor, own.table.tensor}};
  }
};

/// W itself: the product of the unit matrix with W^T, exact since every sum has one term.
std::vector<float> decoded(const QuantMatrix& w, std::int64_t rows_of_x) {
  const auto n = w.n(), k = w.k();
  std::vector<float> all(static_cast<std::size_t>(n * k));
  Pool pool(2);
  Stream s(pool);
  for (std::int64_t first = 0; first < k; first += rows_of_x) {
    const auto m = std::min(rows_of_x, k - first);
    const OwnedTensor x({{m, k}, DType::f32}), y({{m, n}, DType::f32});
    std::memset(x.tensor.data(), 0, static_cast<std::size_t>(x.tensor.bytes()));
    for (std::int64_t i = 0; i < m; ++i) const_cast<float*>(x.tensor.ptr<float>())[i * k + first + i] = 1;
    const auto& p = w.parts;
    const auto scratch = QuantLinear::scratch(x.tensor.spec(), p.codes.spec(), {}, {}, {}, {}, {}, {});
    const OwnedTensor panel(scratch[0]), rows(scratch[1]);
    QuantLinear::forward(s, y.tensor, x.tensor, p.codes, p.scale, p.outer, p.table, {}, {}, panel.tensor, rows.tensor,
                         {.format = w.format});
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j)
        all[static_cast<std::size_t>(j * k + first + i)] = y.tensor.ptr<float>()[i * n + j];
  }
  return all;
}

/// The magnitude of terms that are added to those of a value before it is rounded: of minima and of means of scales.
double slack(QuantFormat f) {
  return f == q4_k ? 64 : f == nf4_double || f == fp4_double ? 8 : is_rotated(f) ? 128 : 0;
}

class EveryFormat : public ::testing::TestWithParam<int> {};

/// Every code, scale and sign, with few rows and with many.
TEST_P(EveryFormat, values_are_those_of_the_formula) {
  const auto format = static_cast<QuantFormat>(GetParam());
  const Drawn w(format, is_rotated(format) ? 18 : 70, 512);
  const auto m = w.matrix();
  const auto values = [](const View& v) { return v ? contract::values_of(v) : contract::Values(); };
  const auto codes = values(m.parts.codes), scale = values(m.parts.scale), outer = values(m.parts.outer),
             table = values(m.parts.table);
  const contract::QuantValues want{format, codes, scale, outer, table};
  testing::for_each_isa([&] {
    for (const std::int64_t rows : {1, 8, 64}) {
      const auto got = decoded(m, rows);
      for (std::int64_t r = 0; r < m.n(); ++r)
        for (std::int64_t c = 0; c < m.k(); ++c) {
          const double w_rc = want.at(r, c);
          // Up to three roundings, of values up to the larger of product and minimum.
          const double most = std::fabs(w_rc) + slack(format);
          ASSERT_NEAR(got[static_cast<std::size_t>(r * m.k() + c)], w_rc, most * 0x1p-22)
              << quant_format_info(format).name << " " << r << ", " << c << ", rows " << rows;
        }
    }
  });
}

TEST_P(EveryFormat, every_instruction_set_decodes_the_same_bits) {
  const auto format = static_cast<QuantFormat>(GetParam());
  if (is_rotated(format)) GTEST_SKIP() << "its weights are sums";
  const Drawn w(format, 33, 768);
  std::vector<float> first;
  testing::for_each_isa([&] {
    for (const std::int64_t rows : {1, 3}) {
      const auto got = decoded(w.matrix(), rows);
      if (first.empty()) first = got;
      ASSERT_EQ(std::memcmp(got.data(), first.data(), got.size() * sizeof(float)), 0) << "rows " << rows;
    }
  });
}

#if HPCDL_CUDA
QuantParts<OwnedTensor> on_gpu(Stream& s, const QuantMatrix& m) {
  const auto copied = [&](const View& from) {
    OwnedTensor to;
    if (!from) return to;
    to = OwnedTensor(from.spec(), s.device());
    copy(s, to.tensor, from);
    return to;
  };
  return {copied(m.parts.codes), copied(m.parts.scale), copied(m.parts.outer), copied(m.parts.table)};
}

/// Panels of many rows and columns, and parts of them.
TEST_P(EveryFormat, gpus_decode_the_values) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  const auto format = static_cast<QuantFormat>(GetParam());
  const Drawn w(format, 11, 8960);
  const auto m = w.matrix();
  const auto values = [](const View& v) { return v ? contract::values_of(v) : contract::Values(); };
  const auto codes = values(m.parts.codes), scale = values(m.parts.scale), outer = values(m.parts.outer),
             table = values(m.parts.table);
  const contract::QuantValues want{format, codes, scale, outer, table};
  Pool pool(1);
  Stream s(Device::cuda(0), pool);
  const auto there = on_gpu(s, m);
  const QuantMatrix on_device{format, {there.codes.tensor, there.scale.tensor, there.outer.tensor, there.table.tensor}};
  for (const auto [r0, rows, k0, columns] : {std::array<std::int64_t, 4>{0, 11, 0, 8960}, {3, 5, 512, 768}}) {
    const OwnedTensor panel({{rows, columns}, DType::f32}), panel_there(panel.tensor.spec(), s.device());
    cuda::quant_decode(s, panel_there.tensor.data(), DType::f32, on_device, r0, rows, k0, columns);
    copy(s, panel.tensor, panel_there.tensor);
    s.synchronize();
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c) {
        const double w_rc = want.at(r0 + r, k0 + c), most = std::fabs(w_rc) + slack(format);
        ASSERT_NEAR(panel.tensor.ptr<float>()[r * columns + c], w_rc, most * 0x1p-22)
            << quant_format_info(format).name << " " << r0 + r << ", " << k0 + c;
      }
  }
}

/// The product of unit vectors with W^T on tensor cores: every code at every place of a block, in the types of x, for each
/// shape of a tile. Codes of integers are exact there, so only their scales' products are rounded.
TEST_P(EveryFormat, tensor_cores_read_every_code) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  const auto format = static_cast<QuantFormat>(GetParam());
  const Drawn w(format, 150, 768);
  const auto m = w.matrix();
  const auto values = [](const View& v) { return v ? contract::values_of(v) : contract::Values(); };
  const auto codes = values(m.parts.codes), scale = values(m.parts.scale), outer = values(m.parts.outer),
             table = values(m.parts.table);
  Pool pool(1);
  Stream s(Device::cuda(0), pool);
  const OwnedTensor row({{1, m.k()}, DType::bf16}, s.device());
  if (cuda::quant_way(s, row.tensor, m) != cuda::QuantWay::tiles)
    GTEST_SKIP() << "this GPU multiplies decoded matrices";
  const auto there = on_gpu(s, m);
  const QuantMatrix on_device{format, {there.codes.tensor, there.scale.tensor, there.outer.tensor, there.table.tensor}};
  for (const DType type : {DType::bf16, DType::f16}) {
    for (const std::int64_t rows : {1, 8, 16, 32, 64, 96, 300}) {
      if (rows > 128 && type == DType::f16) continue;  // whose panels cannot hold the smallest weights
      const std::int64_t blocks = (m.k() + rows - 1) / rows;
      for (std::int64_t b = 0; b < blocks; b += rows == 1 ? 7 : 1) {
        const OwnedTensor x({{rows, m.k()}, type}), y({{rows, m.n()}, DType::f32}),
            x_there(x.tensor.spec(), s.device()), y_there(y.tensor.spec(), s.device());
        const auto way = cuda::quant_way(s, x_there.tensor, on_device);
        const contract::QuantValues want{format, codes, scale, outer, table, type, rounding_of(way)};
        // Panels are rounded to the type of x.
        const double rounds = way == cuda::QuantWay::panels ? half_ulp(type) : 0x1p-21;
        std::memset(x.tensor.data(), 0, static_cast<std::size_t>(x.tensor.bytes()));
        for (std::int64_t i = 0; i < rows && b * rows + i < m.k(); ++i)
          static_cast<std::uint16_t*>(x.tensor.data())[i * m.k() + b * rows + i] =
              type == DType::bf16 ? 0x3f80 : 0x3c00;
        copy(s, x_there.tensor, x.tensor);
        QuantLinear::forward(s, y_there.tensor, x_there.tensor, there.codes.tensor, there.scale.tensor,
                             there.outer.tensor, there.table.tensor, {}, {}, {}, {}, {.format = format});
        copy(s, y.tensor, y_there.tensor);
        s.synchronize();
        for (std::int64_t i = 0; i < rows && b * rows + i < m.k(); ++i)
          for (std::int64_t n = 0; n < m.n(); ++n) {
            const double w_rc = want.at(n, b * rows + i);
            const double most = std::fabs(w_rc) + slack(format);
            ASSERT_NEAR(y.tensor.ptr<float>()[i * m.n() + n], w_rc, std::fabs(w_rc) * rounds + most * 0x1p-21)
                << quant_format_info(format).name << " " << n << ", " << b * rows + i << ", rows " << rows;
          }
      }
    }
  }
}
#endif

INSTANTIATE_TEST_SUITE_P(formats, EveryFormat, ::testing::Range(0, kQuantFormats), [](const auto& p) {
  return std::string(quant_format_info(static_cast<QuantFormat>(p.param)).name);
});

/// Panels: a matrix of more rows, or columns, than one panel.
TEST(quant_linear, gradient_of_several_panels) {
  const Drawn w(q8_0, 4200, 544);
  const auto m = w.matrix();
  const auto& p = m.parts;
  Pool pool(2);
  Stream s(pool);
  const OwnedTensor dy({{9, m.n()}, DType::f32}), dx({{9, m.k()}, DType::f32});
  const auto scratch = QuantLinear::backward_scratch(dx.tensor.spec(), p.codes.spec(), {}, {}, {}, {}, {}, {});
  ASSERT_LT(scratch[0][1], m.k());
  const Rng rng{3, 1};
  for (std::int64_t i = 0; i < dy.tensor.size(); ++i)
    const_cast<float*>(dy.tensor.ptr<float>())[i] = static_cast<float>(rng.normal(static_cast<std::uint64_t>(i)));
  const OwnedTensor panel(scratch[0]);
  QuantLinear::backward(s, Grad(dx.tensor, Write::overwrite), {}, {}, p.codes, p.scale, p.outer, p.table, dy.tensor,
                        panel.tensor, {.format = q8_0});
  const auto codes = contract::values_of(p.codes);
  const contract::Values none;
  const contract::QuantValues want{q8_0, codes, none, none, none};
  for (std::int64_t r = 0; r < 9; ++r)
    for (std::int64_t c = 0; c < m.k(); c += 37) {
      contract::Sum sum;
      for (std::int64_t j = 0; j < m.n(); ++j) sum.add(dy.tensor.ptr<float>()[r * m.n() + j] * want.at(j, c));
      EXPECT_NEAR(dx.tensor.ptr<float>()[r * m.k() + c], sum.value, sum.scale * 0x1p-18);
    }
}

TEST(quant_linear, refuses_what_does_not_fit) {
  const auto p = quant_parts(nf4, 8, 128);
  const Spec x{{2, 128}, DType::f32};
  const auto infer = [&](const Spec& in, const Spec& codes, const Spec& scale) {
    return QuantLinear::infer(in, codes, scale, {}, {}, {}, {}, {.format = nf4});
  };
  EXPECT_EQ(infer(x, p.codes, p.scale), (Spec{{2, 8}, DType::f32}));
  EXPECT_THROW(infer({{2, 64}, DType::f32}, p.codes, p.scale), Error);
  EXPECT_THROW(infer(x, {{8, 65}, DType::u8}, p.scale), Error);
  EXPECT_THROW(infer(x, p.codes, {}), Error);
  EXPECT_THROW(infer(x, p.codes, {{8, 3}, DType::f32}), Error);
  EXPECT_THROW(infer(x, {{8, 64}, DType::i8}, p.scale), Error);
}

}  // namespace
}  // namespace hpcdl
