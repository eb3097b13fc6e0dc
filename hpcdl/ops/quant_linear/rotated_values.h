#pragma once
// Codes of rotated weights.
//
//   rot3         the index of one of 8 values, those with the smallest mean squared error for normal numbers (Lloyd and
//                Max); a block of 256 has the low two bits of input i in byte i % 64 from bit 2 (i / 64) on, and then
//                the high bit in bit i / 32 of byte i % 32
//   rot_ternary  0, 1, 2 for -1, 0, 1. Byte j < 48 of a block holds those of inputs j + 48 d for d = 0 ... 4, and byte
//                48 + j those of inputs 240 + j + 4 d for d = 0 ... 3: the sum of 3^d times the code

#include <cstdint>

namespace hpcdl {

/// By code; the second half repeats the first one, for look-ups by four bits.
constexpr float kRot3Values[16] = {-2.1519454f, -1.3439092f, -0.7560053f, -0.2450939f, 0.2450939f,  0.7560053f,
                                   1.3439092f,  2.1519454f,  -2.1519454f, -1.3439092f, -0.7560053f, -0.2450939f,
                                   0.2450939f,  0.7560053f,  1.3439092f,  2.1519454f};

constexpr int kTernaryBytes = 52;

/// Calls f(input, byte, d) for every code of a block.
template <class F> [[gnu::always_inline]] constexpr void for_ternary(F&& f) {
  for (int d = 0; d < 5; ++d)
    for (int j = 0; j < 48; ++j) f(j + 48 * d, j, d);
  for (int d = 0; d < 4; ++d)
    for (int j = 0; j < 4; ++j) f(240 + j + 4 * d, 48 + j, d);
}

}  // namespace hpcdl
