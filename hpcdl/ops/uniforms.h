#pragma once
// Many counter-based draws at a time, for kernels. Every copy of it has the instruction set in its symbol.

#include <cstdint>

#include "hpcdl/rng.h"

namespace hpcdl::cpu {

/// Rng::uniform of draws [4 * first, 4 * (first + kBlocks)): Philox on all blocks in parallel, so that the compiler can
/// keep each word in vector lanes.
template <int kBlocks, class Isa> inline void uniforms(Isa, float* u, const Rng& rng, std::uint64_t first) {
  std::uint32_t c0[kBlocks], c1[kBlocks], c2[kBlocks], c3[kBlocks];
  for (int i = 0; i < kBlocks; ++i) {
    const std::uint64_t block = first + static_cast<std::uint64_t>(i);
    c0[i] = static_cast<std::uint32_t>(block);
    c1[i] = static_cast<std::uint32_t>(block >> 32);
    c2[i] = static_cast<std::uint32_t>(rng.stream);
    c3[i] = static_cast<std::uint32_t>(rng.stream >> 32);
  }
  auto k0 = static_cast<std::uint32_t>(rng.seed), k1 = static_cast<std::uint32_t>(rng.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kBlocks; ++i) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0[i], p1 = std::uint64_t{0xCD9E8D57u} * c2[i];
      c0[i] = static_cast<std::uint32_t>(p1 >> 32) ^ c1[i] ^ k0;
      c1[i] = static_cast<std::uint32_t>(p1);
      c2[i] = static_cast<std::uint32_t>(p0 >> 32) ^ c3[i] ^ k1;
      c3[i] = static_cast<std::uint32_t>(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const auto unit = [](std::uint32_t w) { return static_cast<float>(static_cast<std::int32_t>(w >> 8)) * 0x1p-24f; };
  for (int i = 0; i < kBlocks; ++i) {
    u[4 * i] = unit(c0[i]);
    u[4 * i + 1] = unit(c1[i]);
    u[4 * i + 2] = unit(c2[i]);
    u[4 * i + 3] = unit(c3[i]);
  }
}

}  // namespace hpcdl::cpu
