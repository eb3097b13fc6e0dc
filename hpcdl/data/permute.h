#pragma once
// A permutation of [0, n) that is computed, not stored: a Feistel network on the next even number of bits, followed
// along its cycle until the result is inside (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002).

#include <bit>
#include <cstdint>

#include "hpcdl/rng.h"

namespace hpcdl::data {

class Permutation {
 public:
  /// n >= 1. Each (seed, epoch) gives another permutation.
  Permutation(std::uint64_t n, std::uint64_t seed, std::uint64_t epoch)
      : n_(n),
        seed_(seed),
        epoch_(epoch),
        half_(n > 1 ? (std::bit_width(n - 1) + 1) / 2 : 1),
        mask_((std::uint64_t{1} << half_) - 1) {}

  std::uint64_t operator()(std::uint64_t i) const {
    do i = feistel(i);
    while (i >= n_);
    return i;
  }

 private:
  static constexpr std::uint32_t kRounds = 6;

  std::uint64_t feistel(std::uint64_t x) const {
    std::uint64_t left = x >> half_, right = x & mask_;
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      const Philox4 f = philox4x32({static_cast<std::uint32_t>(right), round, static_cast<std::uint32_t>(epoch_),
                                    static_cast<std::uint32_t>(epoch_ >> 32)},
                                   seed_);
      const std::uint64_t next = left ^ (f[0] & mask_);
      left = right;
      right = next;
    }
    return left << half_ | right;
  }

  std::uint64_t n_, seed_, epoch_;
  int half_;  // bits of one half: the domain is at most 4 n
  std::uint64_t mask_;
};

}  // namespace hpcdl::data
