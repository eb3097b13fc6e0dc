#include "hpcdl/io/gguf/encode.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>

#include "hpcdl/core/error.h"
#include "hpcdl/dtype.h"

namespace hpcdl::io {
namespace {

using Block = std::uint8_t*;

void put_half(Block p, float x) {
  const f16 h(x);
  std::memcpy(p, &h, sizeof h);
}

/// The value furthest from 0.
float extreme(std::span<const float> x) {
  return *std::ranges::max_element(x, {}, [](float v) { return std::fabs(v); });
}

float inverse(float d) { return d == 0 ? 0 : 1 / d; }

/// The nearest of the numbers from `low` to `high`.
int nearest(float x, int low, int high) {
  return static_cast<int>(std::lrintf(std::clamp(x, float(low), float(high))));
}

void encode_q8_0(const float* x, Block p) {
  const float d = std::fabs(extreme({x, 32})) / 127, id = inverse(d);
  put_half(p, d);
  for (int i = 0; i < 32; ++i) p[2 + i] = static_cast<std::uint8_t>(static_cast<std::int8_t>(std::roundf(x[i] * id)));
}

void encode_q4_0(const float* x, Block p) {
  const float d = extreme({x, 32}) / -8, id = inverse(d);
  const auto code = [&](float v) { return static_cast<std::uint8_t>(std::min(15.0f, std::trunc(v * id + 8.5f))); };
  put_half(p, d);
  for (int i = 0; i < 16; ++i) p[2 + i] = static_cast<std::uint8_t>(code(x[i]) | code(x[i + 16]) << 4);
}

// The K types store scales of groups as small numbers. A group's scale is the best of a few tries: the codes follow from a
// step, and the scale from the codes by least squares, in which large values count more.

constexpr int kTries = 20;

/// Scale d of codes -32 to 31, so that d q is near x.
float fit_symmetric(std::span<const float> x) {
  const float most = extreme(x);
  if (most == 0) return 0;
  float best = 0, best_gain = 0;
  for (int t = 0; t <= kTries; ++t) {
    const float inverse_step = -(31 + 0.1f * static_cast<float>(t)) / most;
    float xq = 0, qq = 0;
    for (const float v : x) {
      const auto q = static_cast<float>(nearest(v * inverse_step, -32, 31)), weight = v * v;
      xq += weight * v * q, qq += weight * q * q;
    }
    if (qq > 0 && xq * xq > best_gain * qq) best_gain = xq * xq / qq, best = xq / qq;
  }
  return best;
}

struct Affine {
  float scale = 0, minimum = 0;  // scale q - minimum, both at least 0
};

/// Of codes 0 to 15.
Affine fit_affine(std::span<const float> x) {
  float square = 0;
  for (const float v : x) square += v * v;
  const float typical = std::sqrt(square / static_cast<float>(x.size()));
  const float low = std::min(0.0f, *std::ranges::min_element(x)), high = *std::ranges::max_element(x);
  if (high <= low) return {0, -low};
  Affine best{(high - low) / 15, -low};
  float best_error = INFINITY;
  for (int t = 0; t <= kTries; ++t) {
    const float inverse_step = (14 + 0.1f * static_cast<float>(t)) / (high - low);
    float w = 0, wq = 0, wqq = 0, wx = 0, wxq = 0;
    for (const float v : x) {
      const float weight = typical + std::fabs(v), q = static_cast<float>(nearest((v - low) * inverse_step, 0, 15));
      w += weight, wq += weight * q, wqq += weight * q * q, wx += weight * v, wxq += weight * v * q;
    }
    const float determinant = w * wqq - wq * wq;
    if (determinant <= 0) continue;
    Affine a{(w * wxq - wx * wq) / determinant, -(wqq * wx - wq * wxq) / determinant};
    if (a.minimum < 0) a = {wxq / wqq, 0};
    if (a.scale <= 0) continue;
    float error = 0;
    for (const float v : x) {
      const auto q = static_cast<float>(nearest((v + a.minimum) / a.scale, 0, 15));
      const float miss = a.scale * q - a.minimum - v;
      error += (typical + std::fabs(v)) * miss * miss;
    }
    if (error < best_error) best_error = error, best = a;
  }
  return best;
}

/// The layout of the 12 bytes is in decode.cpp.
void put_six_bits(Block p, const std::array<int, 8>& scales, const std::array<int, 8>& minima) {
  for (int j = 0; j < 4; ++j) {
    const int s = scales[static_cast<std::size_t>(j)], m = minima[static_cast<std::size_t>(j)];
    const int s4 = scales[static_cast<std::size_t>(j + 4)], m4 = minima[static_cast<std::size_t>(j + 4)];
    p[j] = static_cast<std::uint8_t>(s | (s4 >> 4) << 6);
    p[j + 4] = static_cast<std::uint8_t>(m | (m4 >> 4) << 6);
    p[j + 8] = static_cast<std::uint8_t>((s4 & 15) | (m4 & 15) << 4);
  }
}

void encode_q4_k(const float* x, Block p) {
  std::array<Affine, 8> groups;
  float most_scale = 0, most_minimum = 0;
  for (std::size_t g = 0; g < 8; ++g) {
    groups[g] = fit_affine({x + g * 32, 32});
    most_scale = std::max(most_scale, groups[g].scale), most_minimum = std::max(most_minimum, groups[g].minimum);
  }
  const float d = f16(most_scale / 63), dmin = f16(most_minimum / 63);
  put_half(p, d), put_half(p + 2, dmin);
  std::memset(p + 4, 0, 140);
  std::array<int, 8> scales{}, minima{};
  for (std::size_t g = 0; g < 8; ++g) {
    scales[g] = nearest(groups[g].scale * inverse(d), 0, 63),
    minima[g] = nearest(groups[g].minimum * inverse(dmin), 0, 63);
    const float dl = d * static_cast<float>(scales[g]), ml = dmin * static_cast<float>(minima[g]), id = inverse(dl);
    for (std::size_t k = 0; k < 32; ++k)
      p[16 + g / 2 * 32 + k] |= static_cast<std::uint8_t>(nearest((x[g * 32 + k] + ml) * id, 0, 15) << (g % 2 * 4));
  }
  put_six_bits(p + 4, scales, minima);
}

void encode_q6_k(const float* x, Block p) {
  std::array<float, 16> scales{};
  for (std::size_t g = 0; g < 16; ++g) scales[g] = fit_symmetric({x + g * 16, 16});
  const float d = f16(extreme(scales) / -128);
  put_half(p + 208, d);
  std::memset(p, 0, 192);
  for (int g = 0; g < 16; ++g) {
    const int scale = nearest(scales[static_cast<std::size_t>(g)] * inverse(d), -128, 127);
    p[192 + g] = static_cast<std::uint8_t>(static_cast<std::int8_t>(scale));
    const float id = inverse(d * static_cast<float>(scale));
    for (int k = 0; k < 16; ++k) {
      const int i = g * 16 + k, half = i / 128, in_half = i % 128, q = nearest(x[i] * id, -32, 31) + 32;
      p[half * 64 + in_half % 64] |= static_cast<std::uint8_t>((q & 15) << (in_half / 64 * 4));
      p[128 + half * 32 + in_half % 32] |= static_cast<std::uint8_t>((q >> 4) << (in_half / 32 * 2));
    }
  }
}

void encode_f32(const float* x, Block p) { std::memcpy(p, x, sizeof *x); }
void encode_f16(const float* x, Block p) { put_half(p, *x); }
void encode_bf16(const float* x, Block p) {
  const bf16 b(*x);
  std::memcpy(p, &b, sizeof b);
}

struct Encoder {
  GgufType type;
  void (*block)(const float*, Block);
};
constexpr Encoder kEncoders[] = {{GgufType::f32, encode_f32},   {GgufType::f16, encode_f16},
                                 {GgufType::bf16, encode_bf16}, {GgufType::q8_0, encode_q8_0},
                                 {GgufType::q4_0, encode_q4_0}, {GgufType::q4_k, encode_q4_k},
                                 {GgufType::q6_k, encode_q6_k}};

}  // namespace

bool can_encode(GgufType type) { return std::ranges::find(kEncoders, type, &Encoder::type) != std::end(kEncoders); }

std::string encoded_gguf_types() {
  std::string names;
  for (const auto& e : kEncoders) names += fmt::format("{}{}", names.empty() ? "" : ", ", info_of(e.type).name);
  return names;
}

void encode_blocks(GgufType type, const float* values, std::int64_t count, std::byte* blocks) {
  const auto* encoder = std::ranges::find(kEncoders, type, &Encoder::type);
  require(encoder != std::end(kEncoders), "io", "GGUF: expected one of the types {}, found {}", encoded_gguf_types(),
          info_of(type).name);
  const auto& info = info_of(type);
  for (std::int64_t i = 0; i < count; ++i)
    encoder->block(values + i * info.elements, reinterpret_cast<Block>(blocks) + i * info.bytes);
}

}  // namespace hpcdl::io
