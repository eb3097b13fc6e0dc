#include "hpcdl/ops/fp8_quantize/fp8_quantize.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/core/element.h"
#include "hpcdl/core/error.h"
#include "hpcdl/ops/cast/cast.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/devices.h"

namespace hpcdl {
namespace {

constexpr DType kE4m3 = DType::f8_e4m3, kE5m2 = DType::f8_e5m2;
using Args = Fp8Quantize::Args;

struct Quantized {
  OwnedTensor q, scale;
};

/// Runs on `device`; the results are on the host.
Quantized quantize(Device device, const Tensor& x, const Args& a, const Tensor& amax = {}) {
  Pool pool(2);
  Stream s = device.is_cuda() ? Stream(device, pool) : Stream(pool);
  const auto specs = Fp8Quantize::infer(x.spec(), amax ? amax.spec() : Spec(), a);
  const auto scratch = Fp8Quantize::scratch(x.spec(), amax ? amax.spec() : Spec(), a);
  Quantized host{OwnedTensor(specs[0]), OwnedTensor(specs[1])};
  if (!device.is_cuda()) {
    OwnedTensor measured(scratch[0]);
    Fp8Quantize::forward(s, host.q.tensor, host.scale.tensor, x, amax, measured.tensor, a);
    return host;
  }
  OwnedTensor q(specs[0], device), scale(specs[1], device), measured(scratch[0], device), from(x.spec(), device), most;
  copy(s, from.tensor, x);
  if (amax) most = OwnedTensor(amax.spec(), device), copy(s, most.tensor, amax);
  Fp8Quantize::forward(s, q.tensor, scale.tensor, from.tensor, most.tensor, measured.tensor, a);
  copy(s, host.q.tensor, q.tensor), copy(s, host.scale.tensor, scale.tensor);
  s.synchronize();
  return host;
}

OwnedTensor normal(const Spec& spec, std::uint64_t stream = 0) {
  OwnedTensor x(spec);
  const Rng rng{5, stream};
  for (std::int64_t i = 0; i < spec.size(); ++i)
    set_element(x.tensor, i, rng.normal(static_cast<std::uint64_t>(i)) * 3);
  return x;
}

/// The scale of element (r, c) of q (rows, cols).
float scale_at(const Quantized& z, Fp8Scaling by, std::int64_t r, std::int64_t c, std::int64_t cols) {
  const std::int64_t across = (cols + 127) / 128;
  const float* s = z.scale.tensor.ptr<float>();
  switch (by) {
    case Fp8Scaling::row: return s[r];
    case Fp8Scaling::row_blocks: return s[r * across + c / 128];
    case Fp8Scaling::blocks: return s[r / 128 * across + c / 128];
    default: return s[0];
  }
}

class OnEachDevice : public ::testing::TestWithParam<Device> {};
INSTANTIATE_TEST_SUITE_P(fp8_quantize, OnEachDevice, ::testing::ValuesIn(testing::devices()), testing::device_kind);

TEST_P(OnEachDevice, rounds_what_its_scale_brings_into_range) {
  const Shape shapes[] = {{1, 1}, {7, 16}, {128, 128}, {130, 257}, {300, 100}, {2, 3, 144}, {256, 640}};
  for (const Shape& shape : shapes)
    for (const DType from : {DType::f32, DType::bf16, DType::f16})
      for (const DType to : {kE4m3, kE5m2})
        for (const Fp8Scaling by : {Fp8Scaling::tensor, Fp8Scaling::row, Fp8Scaling::row_blocks, Fp8Scaling::blocks})
          for (const bool transposed : {false, true}) {
            const OwnedTensor x = normal({shape, from});
            const Args a{to, by, transposed};
            SCOPED_TRACE(fmt::format("{}x{} {} {} by {} {}", x.tensor.rows(), x.tensor.cols(), dtype_name(from),
                                     dtype_name(to), static_cast<int>(by), transposed ? "transposed" : ""));
            const Quantized z = quantize(GetParam(), x.tensor, a);
            const std::int64_t rows = z.q.tensor.rows(), cols = z.q.tensor.cols(), k = x.tensor.cols();
            std::vector<float> most(static_cast<std::size_t>(z.scale.tensor.size()));
            const float largest = to == kE4m3 ? 448 : 57344;
            int wrong = 0;
            for (std::int64_t r = 0; r < rows; ++r)
              for (std::int64_t c = 0; c < cols; ++c) {
                const auto v = static_cast<float>(element(x.tensor, transposed ? c * k + r : r * k + c));
                const float scale = scale_at(z, by, r, c, cols);
                const double want = rounded_to(to, static_cast<double>(v * (1 / scale)));
                wrong += element(z.q.tensor, r * cols + c) != want;
                const auto at = static_cast<std::size_t>(
                    &*std::find(z.scale.tensor.ptr<float>(), z.scale.tensor.ptr<float>() + most.size(), scale) -
                    z.scale.tensor.ptr<float>());
                most[at] = std::max(most[at], std::fabs(v));
              }
            ASSERT_EQ(wrong, 0);
            for (std::size_t i = 0; i < most.size(); ++i)
              ASSERT_TRUE(most[i] == 0 || z.scale.tensor.ptr<float>()[i] == most[i] / largest) << i;
          }
}

TEST_P(OnEachDevice, a_given_amax_saves_the_measurement_and_what_exceeds_it_saturates) {
  OwnedTensor x = normal({{5, 40}, DType::f32}), amax({{1}, DType::f32});
  amax.tensor.ptr<float>()[0] = 2;
  x.tensor.ptr<float>()[7] = -30, x.tensor.ptr<float>()[8] = 2;
  const Quantized z = quantize(GetParam(), x.tensor, {}, amax.tensor);
  EXPECT_EQ(z.scale.tensor.ptr<float>()[0], 2.0f / 448);
  EXPECT_EQ(element(z.q.tensor, 7), -448);
  EXPECT_EQ(element(z.q.tensor, 8), 448);
}

TEST_P(OnEachDevice, zeros_nan_infinities_and_tiny_numbers) {
  for (const Fp8Scaling by : {Fp8Scaling::tensor, Fp8Scaling::row, Fp8Scaling::row_blocks, Fp8Scaling::blocks})
    for (const DType to : {kE4m3, kE5m2}) {
      const OwnedTensor x({{4, 32}, DType::f32});
      float* v = x.tensor.ptr<float>();
      std::fill(v, v + x.tensor.size(), 0.0f);
      Quantized z = quantize(GetParam(), x.tensor, {to, by});
      EXPECT_EQ(z.scale.tensor.ptr<float>()[0], 1);
      for (std::int64_t i = 0; i < x.tensor.size(); ++i) ASSERT_EQ(element(z.q.tensor, i), 0);
      v[3] = NAN, v[4] = 1.5f;
      z = quantize(GetParam(), x.tensor, {to, by});
      EXPECT_TRUE(std::isnan(element(z.q.tensor, 3)));
      EXPECT_EQ(element(z.q.tensor, 4), to == kE4m3 ? 448 : 57344) << "NaN does not belong to the largest magnitude";
      v[5] = -INFINITY;
      z = quantize(GetParam(), x.tensor, {to, by});
      EXPECT_EQ(element(z.q.tensor, 5), to == kE4m3 ? -448 : -57344);
      EXPECT_TRUE(std::isfinite(z.scale.tensor.ptr<float>()[0]));
      std::fill(v, v + x.tensor.size(), 1e-40f);
      z = quantize(GetParam(), x.tensor, {to, by});
      for (std::int64_t i = 0; i < x.tensor.size(); ++i) ASSERT_TRUE(std::isfinite(element(z.q.tensor, i)));
    }
}

TEST(fp8_quantize, refuses_operands_in_words) {
  EXPECT_THROW(Fp8Quantize::infer({{4, 4}, DType::i32}, {}, {}), Error);
  EXPECT_THROW(Fp8Quantize::infer({{4, 4}, DType::f32}, {}, {.to = DType::bf16}), Error);
  EXPECT_THROW(Fp8Quantize::infer({{4, 4}, DType::f32}, {{2}, DType::f32}, {}), Error);
  EXPECT_THROW(Fp8Quantize::infer({{4, 4}, DType::f32}, {{1}, DType::f32}, {.scaling = Fp8Scaling::row}), Error);
}

/// All 65,536 values of 16 bits, and as many f32 of all magnitudes, to 8 bits on each device; all codes back.
TEST(fp8_cast, has_the_same_bits_on_every_device) {
  for (const DType wide : {DType::f32, DType::bf16, DType::f16})
    for (const DType narrow : {kE4m3, kE5m2}) {
      const OwnedTensor x({{256, 256}, wide}), codes({{256}, narrow});
      for (std::uint32_t i = 0; i < 65536; ++i) {
        if (wide == DType::f32) x.tensor.ptr<float>()[i] = std::bit_cast<float>(i * 65537u);
        else std::memcpy(static_cast<std::uint16_t*>(x.tensor.data()) + i, &i, 2);
      }
      for (int i = 0; i < 256; ++i) static_cast<std::uint8_t*>(codes.tensor.data())[i] = static_cast<std::uint8_t>(i);
      std::vector<OwnedTensor> there, back;
      for (const Device device : testing::devices()) {
        Pool pool(2);
        Stream s = device.is_cuda() ? Stream(device, pool) : Stream(pool);
        OwnedTensor from(x.tensor.spec(), device), to({{256, 256}, narrow}, device), code(codes.tensor.spec(), device),
            number({{256}, wide}, device);
        copy(s, from.tensor, x.tensor), copy(s, code.tensor, codes.tensor);
        Cast::forward(s, to.tensor, from.tensor, {narrow});
        Cast::forward(s, number.tensor, code.tensor, {wide});
        there.emplace_back(to.tensor.spec()), back.emplace_back(number.tensor.spec());
        copy(s, there.back().tensor, to.tensor), copy(s, back.back().tensor, number.tensor);
        s.synchronize();
      }
      for (std::int64_t i = 0; i < 65536; ++i) {
        const double v = element(x.tensor, i), got = element(there[0].tensor, i);
        ASSERT_TRUE(std::isnan(v) ? std::isnan(got) : got == rounded_to(narrow, v)) << v;
      }
      for (std::size_t d = 1; d < there.size(); ++d) {
        EXPECT_EQ(std::memcmp(there[d].tensor.data(), there[0].tensor.data(), 65536), 0)
            << dtype_name(wide) << " to " << dtype_name(narrow);
        for (std::int64_t i = 0; i < 256; ++i) {
          const double a = element(back[d].tensor, i), b = element(back[0].tensor, i);
          ASSERT_TRUE(std::isnan(b) ? std::isnan(a) : a == b) << i;
        }
      }
    }
}

}  // namespace
}  // namespace hpcdl
