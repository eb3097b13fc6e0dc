#pragma once
// Counter-based random numbers: a pure function of (seed, step, record, element), so results do not depend on how the
// work is split over threads or ranks. Philox4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// SC11.

#include <array>
#include <cmath>
#include <cstdint>

namespace hpcdl {

using Philox4 = std::array<std::uint32_t, 4>;

constexpr Philox4 philox4x32(Philox4 counter, std::uint64_t key) {
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * counter[0], p1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<std::uint32_t>(p1),
               static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}

/// A stream of independent draws, addressed by index. `stream` separates the users of one seed (a record, a tensor).
struct Rng {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;

  constexpr Philox4 block(std::uint64_t index) const {
    return philox4x32({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                       static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)},
                      seed);
  }
  constexpr std::uint32_t bits(std::uint64_t index) const { return block(index / 4)[index % 4]; }
  /// Uniform in [0, 1), 24 bits.
  constexpr float uniform(std::uint64_t index) const { return static_cast<float>(bits(index) >> 8) * 0x1p-24f; }
  /// Standard normal (Box-Muller, in double).
  double normal(std::uint64_t index) const {
    const auto b = block(index);
    const double u = (b[0] + 0.5) * 0x1p-32, v = (b[1] + 0.5) * 0x1p-32;
    return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v);
  }
  /// Uniform integer in [0, n), n > 0 (multiply-shift; bias below 2^-32 for n < 2^32).
  constexpr std::uint64_t below(std::uint64_t index, std::uint64_t n) const {
    const auto b = block(index);
    const std::uint64_t r = (std::uint64_t{b[0]} << 32) | b[1];
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>(r) * n) >> 64);
  }
};

}  // namespace hpcdl
