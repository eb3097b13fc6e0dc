#include "hpcdl/quant/int4.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/quant/codecs.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/every_isa.h"

namespace hpcdl::quant {
namespace {

using testing::for_each_isa;

struct Matrix {
  std::int64_t n, k;
  std::vector<float> v;
  View view() const { return View(v.data(), {{n, k}, DType::f32}); }
  float& at(std::int64_t r, std::int64_t c) { return v[static_cast<std::size_t>(r * k + c)]; }
};
Matrix normal(std::int64_t n, std::int64_t k, double sigma = 0.02, double mean = 0) {
  Matrix m{n, k, std::vector<float>(static_cast<std::size_t>(n * k))};
  const Rng rng{9, 4};
  for (std::size_t i = 0; i < m.v.size(); ++i)
    m.v[i] = static_cast<float>(mean + sigma * rng.normal(i) * (i % 97 == 5 ? 5 : 1));
  return m;
}

std::vector<float> widened(Pool& pool, const Int4Matrix& q) {
  std::vector<float> out(static_cast<std::size_t>(q.weight().n() * q.weight().k()));
  dequantize_int4(pool, Tensor(out.data(), {{q.weight().n(), q.weight().k()}, DType::f32}), q.weight());
  return out;
}

double step_of(const Int4Matrix& q, std::int64_t row, std::int64_t k) {
  const auto w = q.weight();
  const auto tile = row / 16 * 16, rows = int4::tile_rows(tile, w.n());
  const auto at = int4::scale_at(tile, w.groups()) + k / w.group() * rows + row - tile;
  return std::fabs(static_cast<double>(static_cast<float>(w.scale.ptr<bf16>()[at])));
}

TEST(int4, packing_is_exact_for_every_byte) {
  Pool pool(2);
  for (std::int64_t n : {1, 15, 16, 17, 64, 100})
    for (std::int64_t k : {8, 32, 256}) {
      std::vector<std::uint8_t> packed(static_cast<std::size_t>(n * k / 2)), again(packed.size()),
          q(static_cast<std::size_t>(n * k));
      for (std::size_t i = 0; i < packed.size(); ++i) packed[i] = static_cast<std::uint8_t>(i * 7 + i / 256);
      const Tensor t(packed.data(), int4::packed_spec(n, k)), u(again.data(), int4::packed_spec(n, k)),
          v(q.data(), {{n, k}, DType::u8});
      std::memset(q.data(), 0xff, q.size());
      unpack_int4(pool, v, t);
      pack_int4(pool, u, v);
      EXPECT_EQ(packed, again);
      // The same by the definition of the layout.
      for (std::int64_t r = 0; r < n; ++r)
        for (std::int64_t c = 0; c < k; ++c) {
          const auto tile = r / 16 * 16, rows = std::min<std::int64_t>(16, n - tile);
          const int byte = packed[static_cast<std::size_t>(tile * k / 2 + c / 8 * rows * 4 + (r - tile) * 4 + c % 4)];
          ASSERT_EQ(q[static_cast<std::size_t>(r * k + c)], c % 8 < 4 ? byte & 15 : byte >> 4);
        }
    }
  std::vector<std::uint8_t> q(64, 3), packed(32);
  q[40] = 16;
  EXPECT_THROW(pack_int4(pool, Tensor(packed.data(), int4::packed_spec(2, 32)), View(q.data(), {{2, 32}, DType::u8})),
               Error);
  EXPECT_THROW(pack_int4(pool, Tensor(packed.data(), int4::packed_spec(2, 16)), View(q.data(), {{2, 32}, DType::u8})),
               Error);
}

TEST(int4, every_weight_lies_within_half_a_step) {
  for_each_isa([] {
    Pool pool(2);
    for (bool symmetric : {true, false})
      for (std::int64_t group : {32, 64, 128})
        for (double magnitude : {1.0, 1e-30, 1e30, 3e37}) {
          Matrix m = normal(37, 256, 0.1, 0.05);
          for (float& v : m.v) v = static_cast<float>(std::fmod(static_cast<double>(v), 1.0) * magnitude);
          for (std::int64_t c = 0; c < 256; ++c) {
            m.at(3, c) = 0;
            m.at(4, c) = static_cast<float>(-0.3 * magnitude);
            m.at(5, c) = std::fabs(m.at(5, c));
            m.at(6, c) = static_cast<float>((7 + 1e-4 * static_cast<double>(c % 5)) * magnitude);  // far from zero
          }
          nn::RoundingError error;
          const auto q =
              quantize_int4(pool, m.view(), {.group = group, .symmetric = symmetric, .search = false}, false, &error);
          const auto back = widened(pool, q);
          double largest = 0, squared = 0;
          for (std::int64_t r = 0; r < m.n; ++r)
            for (std::int64_t c = 0; c < m.k; ++c) {
              const double w = static_cast<double>(m.at(r, c)),
                           d = std::fabs(w - static_cast<double>(back[static_cast<std::size_t>(r * m.k + c)]));
              // In addition to half a step: the float rounding errors of the two operations that widen.
              ASSERT_LE(d, step_of(q, r, c) / 2 * (1 + 1e-5) + std::fabs(w) * 0x1p-22)
                  << symmetric << group << " " << r << "," << c;
              largest = std::max(largest, d);
              squared += d * d;
            }
          EXPECT_NEAR(error.largest, largest, largest * 1e-5);
          EXPECT_NEAR(error.rms(), std::sqrt(squared / static_cast<double>(m.v.size())), error.rms() * 1e-4);
          for (std::int64_t c = 0; c < 256; ++c) ASSERT_EQ(back[static_cast<std::size_t>(3 * 256 + c)], 0.0f);
        }
  });
}

TEST(int4, the_search_lowers_the_error) {
  for_each_isa([] {
    Pool pool(2);
    for (bool symmetric : {true, false})
      for (std::int64_t group : {32, 128}) {
        const Matrix m = normal(64, 512);
        nn::RoundingError plain, searched;
        quantize_int4(pool, m.view(), {group, symmetric, false}, false, &plain);
        const auto q = quantize_int4(pool, m.view(), {group, symmetric, true}, false, &searched);
        EXPECT_LT(searched.squared, 0.93 * plain.squared) << symmetric << " " << group;
        EXPECT_GT(searched.relative_rms(), 0.02);
        const auto back = widened(pool, q);
        double squared = 0;
        for (std::size_t i = 0; i < back.size(); ++i) squared += std::pow(static_cast<double>(m.v[i] - back[i]), 2);
        EXPECT_NEAR(searched.squared, squared, squared * 1e-4);
      }
  });
}

TEST(int4, offsets_serve_groups_away_from_zero) {
  Pool pool(2);
  const Matrix m = normal(32, 256, 0.01, 1.0);
  nn::RoundingError symmetric, asymmetric;
  quantize_int4(pool, m.view(), {.symmetric = true}, false, &symmetric);
  quantize_int4(pool, m.view(), {.symmetric = false}, false, &asymmetric);
  EXPECT_LT(asymmetric.rms(), 0.2 * symmetric.rms());
}

TEST(int4, constant_groups_and_values_on_the_grid_come_back) {
  for_each_isa([] {
    Pool pool(1);
    Matrix m{16, 64, std::vector<float>(16 * 64)};
    for (std::int64_t r = 0; r < 16; ++r)
      for (std::int64_t c = 0; c < 64; ++c)
        m.at(r, c) = r < 8 ? 0.25f * static_cast<float>(r) : 0.5f * static_cast<float>((r + c * 5) % 16 - 8);
    for (bool symmetric : {true, false})
      for (bool search : {true, false}) {
        const auto back = widened(pool, quantize_int4(pool, m.view(), {64, symmetric, search}));
        for (std::int64_t r = 0; r < 16; ++r)
          for (std::int64_t c = 0; c < 64; ++c)
            ASSERT_EQ(back[static_cast<std::size_t>(r * 64 + c)], m.at(r, c))
                << symmetric << search << " " << r << "," << c;
      }
  });
}

TEST(int4, layout_of_the_source_and_threads_do_not_matter) {
  Pool one(1), two(2);
  const Matrix m = normal(45, 128);
  const nn::CodecOptions options{.group = 64, .symmetric = false};
  const auto want = quantize_int4(one, m.view(), options);
  Matrix t{128, 45, std::vector<float>(45 * 128)};
  for (std::int64_t r = 0; r < 45; ++r)
    for (std::int64_t c = 0; c < 128; ++c) t.at(c, r) = m.v[static_cast<std::size_t>(r * 128 + c)];
  const auto same = [&](const Int4Matrix& got) {
    EXPECT_EQ(std::memcmp(got.packed.tensor.data(), want.packed.tensor.data(),
                          static_cast<std::size_t>(want.packed.tensor.bytes())),
              0);
    EXPECT_EQ(std::memcmp(got.scale.tensor.data(), want.scale.tensor.data(),
                          static_cast<std::size_t>(want.scale.tensor.bytes())),
              0);
    EXPECT_EQ(std::memcmp(got.offset.tensor.data(), want.offset.tensor.data(),
                          static_cast<std::size_t>(want.offset.tensor.bytes())),
              0);
  };
  same(quantize_int4(two, m.view(), options));
  same(quantize_int4(two, t.view(), options, true));
  std::vector<bf16> half(m.v.begin(), m.v.end());
  std::vector<float> rounded(half.begin(), half.end());
  const auto a = quantize_int4(two, View(half.data(), {{45, 128}, DType::bf16}), options);
  const auto b = quantize_int4(two, View(rounded.data(), {{45, 128}, DType::f32}), options);
  EXPECT_EQ(widened(two, a), widened(two, b));
}

std::string message(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(int4, says_what_is_wrong_with_weights) {
  Pool pool(2);
  for (float bad : {NAN, INFINITY, -INFINITY}) {
    Matrix m = normal(40, 128);
    m.at(33, 77) = bad;
    m.at(35, 100) = bad;
    EXPECT_NE(
        message([&] { quantize_int4(pool, m.view(), {}, false, nullptr, "h.3.w"); }).find("h.3.w: weight [33, 77]"),
        std::string::npos);
  }
  const Matrix m = normal(8, 96);
  const std::string text = message([&] { quantize_int4(pool, m.view(), {.group = 64}, false, nullptr, "h.3.w"); });
  EXPECT_NE(text.find("h.3.w: group size 64 does not divide its K = 96"), std::string::npos) << text;
  EXPECT_NE(text.find("that does: 32"), std::string::npos) << text;
  EXPECT_NE(message([&] { require_fit(int4_codec, "x", 100, {.group = 32}); }).find("keep this tensor"),
            std::string::npos);
  EXPECT_NE(message([&] { require_fit(int4_codec, "x", 128, {.group = 16}); }).find("32, 64 or 128"),
            std::string::npos);
  EXPECT_NE(message([&] { quantize_int4(pool, View(m.v.data(), {{96}, DType::f32}), {}); }).find("a matrix"),
            std::string::npos);
}

TEST(int4, bits_per_weight_are_those_of_the_tensors) {
  for (std::int64_t group : {32, 64, 128})
    for (bool symmetric : {true, false}) {
      const Int4Matrix q(37, 256, {group, symmetric});
      EXPECT_DOUBLE_EQ(8.0 * static_cast<double>(q.bytes()) / (37 * 256), int4::bits_per_weight(group, symmetric));
    }
  EXPECT_DOUBLE_EQ(int4::bits_per_weight(64, true), 4.25);
}

}  // namespace
}  // namespace hpcdl::quant
