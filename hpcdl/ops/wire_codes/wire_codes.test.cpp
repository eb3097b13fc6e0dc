#include "hpcdl/ops/wire_codes/wire_codes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/core/element.h"
#include "hpcdl/core/error.h"
#include "hpcdl/rng.h"
#include "hpcdl/simd/isa.h"

namespace hpcdl {
namespace {

constexpr WireCode kCodes[] = {WireCode::bf16, WireCode::int8, WireCode::int4};

OwnedTensor normal(std::int64_t n, DType type, std::uint64_t seed = 5) {
  OwnedTensor x({{n}, type});
  const Rng rng{seed, 1};
  for (std::int64_t i = 0; i < n; ++i) {
    const double outlier = i % 37 == 3 ? 10 : 1;
    set_element(x.tensor, i, rng.normal(static_cast<std::uint64_t>(i)) * outlier);
  }
  return x;
}

std::vector<double> values(const Tensor& t) {
  std::vector<double> v;
  for (std::int64_t i = 0; i < t.size(); ++i) v.push_back(element(t, i));
  return v;
}

OwnedTensor encoded(const Tensor& x, const WireArgs& a, int threads = 2) {
  Pool pool(threads);
  Stream s(pool);
  OwnedTensor messages(WireEncode::infer(x.spec(), a));
  std::memset(messages.tensor.data(), 0xa5, static_cast<std::size_t>(messages.tensor.bytes()));
  WireEncode::forward(s, messages.tensor, x, a);
  return messages;
}

OwnedTensor decoded(const Tensor& messages, const WireDecodeArgs& a, int threads = 2) {
  Pool pool(threads);
  Stream s(pool);
  OwnedTensor y(WireDecode::infer(messages.spec(), a));
  std::memset(y.tensor.data(), 0xff, static_cast<std::size_t>(y.tensor.bytes()));
  WireDecode::forward(s, y.tensor, messages, a);
  return y;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.spec() == b.spec() && std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.bytes())) == 0;
}

/// The definition: what a value of a part becomes, element by element, in double; and how far from that f32 may be.
struct Reference {
  std::vector<double> value, tolerance;

  Reference(const std::vector<double>& x, const WireArgs& a) : value(x.size()), tolerance(x.size()) {
    const auto n = static_cast<std::int64_t>(x.size());
    const auto part = WireLayout{n, a.parts, a.code}.part();
    for (std::int64_t p = 0; p < a.parts; ++p)
      for (std::int64_t b = p * part; b < (p + 1) * part; b += WireLayout::kBlock) {
        const auto end = std::min(b + WireLayout::kBlock, n);
        double most = 0;
        for (auto i = b; i < end; ++i) most = std::max(most, std::fabs(x[static_cast<std::size_t>(i)]));
        for (auto i = b; i < end; ++i) code(static_cast<std::size_t>(i), x[static_cast<std::size_t>(i)], most, a.code);
      }
  }

 private:
  void code(std::size_t i, double x, double most, WireCode c) {
    if (c == WireCode::bf16) {
      value[i] = rounded_to(DType::bf16, x);
      return;
    }
    const double unit = most / (c == WireCode::int8 ? 127 : 7);
    const double ratio = unit > 0 ? x / unit : 0, code = std::nearbyint(ratio);
    value[i] = code * unit;
    // A ratio next to the middle of two codes may be rounded to either, and products are rounded to f32.
    const bool middle = std::fabs(std::fabs(ratio - std::floor(ratio)) - 0.5) < 1e-4;
    tolerance[i] = 4e-7 * most + (middle ? unit : 0);
  }
};

void expect_values(const Tensor& y, const Reference& want, const std::string& what) {
  int wrong = 0;
  for (std::int64_t i = 0; i < y.size(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    const double type = y.dtype() == DType::f32 ? 0 : std::ldexp(std::fabs(want.value[at]), -8);
    wrong += !(std::fabs(element(y, i) - want.value[at]) <= want.tolerance[at] + type);
  }
  EXPECT_EQ(wrong, 0) << what;
}

TEST(wire_codes, values_are_those_of_the_definition) {
  for (const std::int64_t n : {1, 7, 255, 256, 257, 1000, 8192, 24576})
    for (const std::int32_t parts : {1, 2, 3, 8})
      for (const auto code : kCodes)
        for (const auto type : {DType::f32, DType::bf16, DType::f16}) {
          const auto x = normal(n, type);
          const WireArgs a{parts, code};
          const Reference want(values(x.tensor), a);
          const auto messages = encoded(x.tensor, a);
          for (const auto to : {DType::f32, type})
            expect_values(decoded(messages.tensor, {n, parts, code, to}).tensor, want,
                          fmt::format("{} elements, {} parts, {}, {} to {}", n, parts, wire_code_name(code),
                                      dtype_name(type), dtype_name(to)));
        }
}

/// What a rank does with the messages of all ranks: each is one part of what its sender has encoded.
TEST(wire_codes, sums_add_the_parts_in_their_order) {
  for (const std::int64_t n : {256, 1000, 8192})
    for (const std::int32_t ranks : {1, 2, 3, 5})
      for (const auto code : kCodes) {
        const WireLayout layout{n, 1, code};
        OwnedTensor messages({{ranks, layout.bytes()}, DType::u8});
        std::vector<float> sum(static_cast<std::size_t>(n));
        for (std::int32_t r = 0; r < ranks; ++r) {
          const auto mine = encoded(normal(n, DType::f32, static_cast<std::uint64_t>(r)).tensor, {1, code});
          std::memcpy(messages.tensor.ptr<std::byte>() + r * layout.bytes(), mine.tensor.data(),
                      static_cast<std::size_t>(layout.bytes()));
          const auto v = decoded(mine.tensor, {n, 1, code});
          for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += v.tensor.ptr<float>()[i];
        }
        const auto y = decoded(messages.tensor, {n, ranks, code, DType::f32, true});
        // A product and a sum may be rounded together.
        for (std::size_t i = 0; i < sum.size(); ++i)
          ASSERT_NEAR(y.tensor.ptr<float>()[i], sum[i], 1e-5) << ranks << " ranks, element " << i;
      }
}

TEST(wire_codes, threads_and_instruction_sets_change_no_message) {
  for (const auto code : kCodes) {
    const auto x = normal(20011, DType::f32);
    const auto want = encoded(x.tensor, {3, code}, 1);
    const auto y = decoded(want.tensor, {20011, 3, code}, 1);
    for (const auto kind : simd::kIsaKinds) {
      if (kind > simd::best_isa()) continue;
      for (const int threads : {1, 2, 3}) {
        Pool pool(threads);
        const OwnedTensor messages(want.tensor.spec()), values(y.tensor.spec());
        simd::with_isa(kind, [&](auto isa) {
          cpu::wire_encode(isa, pool, messages.tensor, x.tensor, {3, code});
          cpu::wire_decode(isa, pool, values.tensor, want.tensor, {20011, 3, code});
        });
        EXPECT_TRUE(same_bits(messages.tensor, want.tensor)) << wire_code_name(code);
        EXPECT_TRUE(same_bits(values.tensor, y.tensor)) << wire_code_name(code);
      }
    }
  }
}

TEST(wire_codes, extreme_numbers) {
  const float largest = std::numeric_limits<float>::max(), least = std::numeric_limits<float>::denorm_min();
  for (const auto code : {WireCode::int8, WireCode::int4}) {
    constexpr auto kBlock = WireLayout::kBlock;
    OwnedTensor x({{5 * kBlock}, DType::f32});
    auto* v = x.tensor.ptr<float>();
    const auto block = [&](std::int64_t b) { return v + b * kBlock; };
    std::fill(v, block(5), 1.0f);
    block(0)[3] = std::numeric_limits<float>::quiet_NaN();
    block(1)[2] = -std::numeric_limits<float>::infinity();
    std::fill(block(2), block(3), 0.0f);
    block(3)[0] = largest, block(3)[1] = -largest;
    std::fill(block(4), block(5), 0.0f), block(4)[0] = least;
    const auto y = decoded(encoded(x.tensor, {1, code}).tensor, {5 * kBlock, 1, code});
    const auto* got = y.tensor.ptr<float>();
    for (std::int64_t i = 0; i < 2 * kBlock; ++i) ASSERT_TRUE(std::isnan(got[i])) << i;
    for (std::int64_t i = 2 * kBlock; i < 3 * kBlock; ++i) ASSERT_EQ(got[i], 0) << i;
    EXPECT_NEAR(got[3 * kBlock] / largest, 1, 1e-6);
    EXPECT_NEAR(got[3 * kBlock + 1] / largest, -1, 1e-6);
    for (std::int64_t i = 4 * kBlock; i < 5 * kBlock; ++i) ASSERT_LE(std::fabs(got[i]), 2 * least) << i;
  }
}

TEST(wire_codes, messages_have_the_bytes_of_the_formula) {
  for (const auto& [code, bytes] : {std::pair{WireCode::bf16, 2.0},
                                    {WireCode::int8, 1 + 4.0 / WireLayout::kBlock},
                                    {WireCode::int4, 0.5 + 4.0 / WireLayout::kBlock}})
    for (const std::int64_t n : {8192, 3 * 8192})
      EXPECT_EQ(WireEncode::infer({{n}, DType::f32}, {1, code}).bytes(),
                static_cast<std::int64_t>(bytes * static_cast<double>(n)));
  EXPECT_EQ(WireEncode::infer({{0}, DType::f32}, {3, WireCode::int4}), (Spec{{3, 0}, DType::u8}));
  EXPECT_EQ(WireEncode::infer({{260}, DType::f32}, {1, WireCode::int4}), (Spec{{1, 256 + 8}, DType::u8}));
}

TEST(wire_codes, refuses_operands_in_words) {
  const Spec x{{512}, DType::f32}, messages{{2, 260}, DType::u8};
  EXPECT_THROW(WireEncode::infer({{512}, DType::i32}, {}), Error);
  EXPECT_THROW(WireEncode::infer(x, {0, WireCode::int8}), Error);
  EXPECT_THROW(WireEncode::infer(x, {1, WireCode::none}), Error);
  EXPECT_NO_THROW(WireDecode::infer(messages, {512, 2, WireCode::int8}));
  EXPECT_THROW(WireDecode::infer(messages, {513, 2, WireCode::int8}), Error);
  EXPECT_THROW(WireDecode::infer(messages, {512, 2, WireCode::int4}), Error);
  EXPECT_THROW(WireDecode::infer(messages, {512, 2, WireCode::int8, DType::i32}), Error);
  EXPECT_THROW(WireDecode::infer(messages, {256, 2, WireCode::int8, DType::bf16, true}), Error);
  EXPECT_NO_THROW(WireDecode::infer(messages, {256, 2, WireCode::int8, DType::f32, true}));
}

}  // namespace
}  // namespace hpcdl
