#pragma once
// The rotation of formats whose codes stand for rotated weights: y = H (s * x) / 16 for each 256 inputs of a row, with
// Sylvester's Hadamard matrix H, H[i][j] = -1 to the number of bits that are set in both i and j, and fixed signs s. It is
// orthogonal, and x = s * (H y) / 16. Large weights are spread over their block, whose values are nearly normal then (Ashkboos et
// al., "QuaRot", 2024).

#include <cstdint>

namespace hpcdl {

constexpr int kRotated = 256;

/// Bit i of 256 that were drawn once: whether s is -1 for input i of a block. Part of the formats.
constexpr std::uint64_t kRotationSigns[4] = {0xb4d8'7d3a'91c6'2e5full, 0x2f19'c8e5'6b07'd4a3ull,
                                             0xe35a'1f86'4cd9'70b2ull, 0x58c7'a2f4'0e9b'd361ull};

[[gnu::always_inline]] constexpr bool rotation_flips(int i) { return kRotationSigns[i / 64] >> (i % 64) & 1; }

namespace detail {
/// v = H v.
template <class T> [[gnu::always_inline]] constexpr void hadamard(T* v) {
  for (int apart = kRotated / 2; apart > 0; apart /= 2)
    for (int first = 0; first < kRotated; first += 2 * apart)
      for (int i = first; i < first + apart; ++i) {
        const T a = v[i], b = v[i + apart];
        v[i] = a + b, v[i + apart] = a - b;
      }
}
}  // namespace detail

/// s / 16
struct RotationFactors {
  float of[kRotated];
  constexpr RotationFactors() : of{} {
    for (int i = 0; i < kRotated; ++i) of[i] = rotation_flips(i) ? -0.0625f : 0.0625f;
  }
};
constexpr RotationFactors kRotationFactors;

template <class T> [[gnu::always_inline]] constexpr void rotate(T* v) {
  for (int i = 0; i < kRotated; ++i) v[i] *= T(kRotationFactors.of[i]);
  detail::hadamard(v);
}
template <class T> [[gnu::always_inline]] constexpr void rotate_back(T* v) {
  detail::hadamard(v);
  for (int i = 0; i < kRotated; ++i) v[i] *= T(kRotationFactors.of[i]);
}

}  // namespace hpcdl
