#include "hpcdl/io/gguf/decode.h"

#include <array>
#include <bit>
#include <cstring>

#include "hpcdl/core/error.h"
#include "hpcdl/dtype.h"

namespace hpcdl::io {
namespace {

using Bytes = const std::uint8_t*;

float half_at(Bytes p) {
  f16 h;
  std::memcpy(&h, p, sizeof h);
  return h;
}

std::uint32_t word_at(Bytes p) {
  std::uint32_t w;
  std::memcpy(&w, p, sizeof w);
  return w;
}

float to_float(int q) { return static_cast<float>(q); }

// Blocks of 32: element i in the low four bits of byte i, element i + 16 in the high ones.

/// d | 16 bytes
void decode_q4_0(Bytes p, float* out) {
  const float d = half_at(p);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * to_float((p[2 + i] & 15) - 8);
    out[i + 16] = d * to_float((p[2 + i] >> 4) - 8);
  }
}

/// d | m | 16 bytes
void decode_q4_1(Bytes p, float* out) {
  const float d = half_at(p), m = half_at(p + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * to_float(p[4 + i] & 15) + m;
    out[i + 16] = d * to_float(p[4 + i] >> 4) + m;
  }
}

/// d | fifth bits of the 32 elements | 16 bytes
void decode_q5_0(Bytes p, float* out) {
  const float d = half_at(p);
  const std::uint32_t high = word_at(p + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * to_float(static_cast<int>((p[6 + i] & 15) | (high >> i & 1) << 4) - 16);
    out[i + 16] = d * to_float(static_cast<int>((p[6 + i] >> 4) | (high >> (i + 16) & 1) << 4) - 16);
  }
}

/// d | m | fifth bits | 16 bytes
void decode_q5_1(Bytes p, float* out) {
  const float d = half_at(p), m = half_at(p + 2);
  const std::uint32_t high = word_at(p + 4);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * to_float(static_cast<int>((p[8 + i] & 15) | (high >> i & 1) << 4)) + m;
    out[i + 16] = d * to_float(static_cast<int>((p[8 + i] >> 4) | (high >> (i + 16) & 1) << 4)) + m;
  }
}

/// d | 32 signed bytes
void decode_q8_0(Bytes p, float* out) {
  const float d = half_at(p);
  for (int i = 0; i < 32; ++i) out[i] = to_float(static_cast<std::int8_t>(p[2 + i])) * d;
}

/// Half of 2^(e - 127): the values are stored doubled.
float half_power(std::uint8_t e) {
  return std::bit_cast<float>(e < 2 ? std::uint32_t{0x00200000} << e : static_cast<std::uint32_t>(e - 1) << 23);
}

/// Exponent | 16 bytes of E2M1
void decode_mxfp4(Bytes p, float* out) {
  static constexpr std::array<std::int8_t, 16> kDoubled = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  const float d = half_power(p[0]);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * to_float(kDoubled[p[1 + i] & 15]);
    out[i + 16] = d * to_float(kDoubled[p[1 + i] >> 4]);
  }
}

// Blocks of 256.

/// Groups of 16: group 8 h + 2 j + s holds bytes 16 s to 16 s + 15 of the 32 that belong to half h, shifted by j.
struct Group16 {
  int half, shift, first;
  explicit Group16(int group) : half(group / 8), shift(group % 8 / 2), first(group % 2 * 16) {}
};

/// 16 x (scale in the low four bits, minimum in the high ones) | 64 bytes of two bits | d | dmin
void decode_q2_k(Bytes p, float* out) {
  const float d = half_at(p + 80), dmin = half_at(p + 82);
  for (int group = 0; group < 16; ++group) {
    const Group16 g(group);
    const float dl = d * to_float(p[group] & 15), ml = dmin * to_float(p[group] >> 4);
    const Bytes q = p + 16 + g.half * 32 + g.first;
    for (int k = 0; k < 16; ++k) out[group * 16 + k] = dl * to_float(q[k] >> (2 * g.shift) & 3) - ml;
  }
}

/// 32 bytes of third bits, inverted | 64 bytes of two bits | 16 scales of 6 bits | d
void decode_q3_k(Bytes p, float* out) {
  const float d = half_at(p + 108);
  const Bytes packed = p + 96;
  for (int group = 0; group < 16; ++group) {
    const Group16 g(group);
    const int four = packed[group % 8] >> (group / 8 * 4) & 15, two = packed[8 + group % 4] >> (group / 4 * 2) & 3;
    const float dl = d * to_float((four | two << 4) - 32);
    const Bytes high = p + g.first, low = p + 32 + g.half * 32 + g.first;
    const int bit = g.half * 4 + g.shift;
    for (int k = 0; k < 16; ++k)
      out[group * 16 + k] = dl * to_float((low[k] >> (2 * g.shift) & 3) + (high[k] >> bit & 1) * 4 - 4);
  }
}

struct ScaleAndMinimum {
  int scale, minimum;
};

/// Of group 0 to 7, from 12 bytes of 6-bit numbers.
ScaleAndMinimum six_bits(Bytes p, int group) {
  if (group < 4) return {p[group] & 63, p[group + 4] & 63};
  return {(p[group + 4] & 15) | (p[group - 4] >> 6) << 4, (p[group + 4] >> 4) | (p[group] >> 6) << 4};
}

/// d | dmin | 8 scales and minima | 128 bytes; of each 64 elements, the first 32 are in the low bits of 32 bytes
void decode_q4_k(Bytes p, float* out) {
  const float d = half_at(p), dmin = half_at(p + 2);
  for (int group = 0; group < 8; ++group) {
    const auto [scale, minimum] = six_bits(p + 4, group);
    const float dl = d * to_float(scale), ml = dmin * to_float(minimum);
    const Bytes q = p + 16 + group / 2 * 32;
    const int shift = group % 2 * 4;
    for (int k = 0; k < 32; ++k) out[group * 32 + k] = dl * to_float(q[k] >> shift & 15) - ml;
  }
}

/// d | dmin | 8 scales and minima | 32 bytes of fifth bits | 128 bytes as in Q4_K
void decode_q5_k(Bytes p, float* out) {
  const float d = half_at(p), dmin = half_at(p + 2);
  for (int group = 0; group < 8; ++group) {
    const auto [scale, minimum] = six_bits(p + 4, group);
    const float dl = d * to_float(scale), ml = dmin * to_float(minimum);
    const Bytes high = p + 16, low = p + 48 + group / 2 * 32;
    const int shift = group % 2 * 4;
    for (int k = 0; k < 32; ++k)
      out[group * 32 + k] = dl * to_float((low[k] >> shift & 15) | (high[k] >> group & 1) << 4) - ml;
  }
}

/// 128 bytes of four low bits | 64 bytes of two high bits | 16 signed scales | d
void decode_q6_k(Bytes p, float* out) {
  const float d = half_at(p + 208);
  for (int group = 0; group < 16; ++group) {
    const Group16 g(group);
    const float dl = d * to_float(static_cast<std::int8_t>(p[192 + group]));
    const Bytes low = p + g.half * 64 + g.shift % 2 * 32 + g.first, high = p + 128 + g.half * 32 + g.first;
    const int low_shift = g.shift / 2 * 4, high_shift = 2 * g.shift;
    for (int k = 0; k < 16; ++k)
      out[group * 16 + k] = dl * to_float((low[k] >> low_shift & 15) + (high[k] >> high_shift & 3) * 16 - 32);
  }
}

void decode_f32(Bytes p, float* out) { std::memcpy(out, p, 4); }
void decode_f16(Bytes p, float* out) { *out = half_at(p); }
void decode_bf16(Bytes p, float* out) {
  bf16 b;
  std::memcpy(&b, p, sizeof b);
  *out = b;
}

template <auto decode> void decode_each(const GgufTypeInfo& type, Bytes p, std::int64_t count, float* out) {
  const auto bytes = static_cast<std::size_t>(type.bytes);
  const auto elements = type.elements;
  for (std::int64_t i = 0; i < count; ++i) {
    std::array<std::uint8_t, 256> block;  // of its own, so that the compiler knows that `out` does not change it
    std::memcpy(block.data(), p + static_cast<std::size_t>(i) * bytes, bytes);
    decode(block.data(), out + i * elements);
  }
}

}  // namespace

void decode_blocks(GgufType type, const std::byte* blocks, std::int64_t count, float* out) {
  const auto& info = info_of(type);
  const auto p = reinterpret_cast<Bytes>(blocks);
  switch (type) {
    case GgufType::f32: return decode_each<decode_f32>(info, p, count, out);
    case GgufType::f16: return decode_each<decode_f16>(info, p, count, out);
    case GgufType::bf16: return decode_each<decode_bf16>(info, p, count, out);
    case GgufType::q8_0: return decode_each<decode_q8_0>(info, p, count, out);
    case GgufType::q4_0: return decode_each<decode_q4_0>(info, p, count, out);
    case GgufType::q4_1: return decode_each<decode_q4_1>(info, p, count, out);
    case GgufType::q5_0: return decode_each<decode_q5_0>(info, p, count, out);
    case GgufType::q5_1: return decode_each<decode_q5_1>(info, p, count, out);
    case GgufType::q2_k: return decode_each<decode_q2_k>(info, p, count, out);
    case GgufType::q3_k: return decode_each<decode_q3_k>(info, p, count, out);
    case GgufType::q4_k: return decode_each<decode_q4_k>(info, p, count, out);
    case GgufType::q5_k: return decode_each<decode_q5_k>(info, p, count, out);
    case GgufType::q6_k: return decode_each<decode_q6_k>(info, p, count, out);
    case GgufType::mxfp4: return decode_each<decode_mxfp4>(info, p, count, out);
  }
}

}  // namespace hpcdl::io
