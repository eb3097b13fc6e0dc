#pragma once
// NCCL or our own kernels: decided by fixed measurements, never by timing at run time, so that the bits of a run do not
// depend on its timing.

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace hpcdl::comm {

/// NCCL_P2P_DISABLE=1 also disables our own kernels, which write to peers.
inline bool peers_wanted() {
  const char* off = std::getenv("NCCL_P2P_DISABLE");
  return !off || std::string_view(off) == "0";
}

/// Between GPUs of one host with NVLink between all pairs. On four H200s with NCCL 2.28 (ring;
/// bench/gpu/all_reduce_grid), microseconds of NCCL and of our kernels: 64 KB 13.9, 4.7; 256 KB 14.2, 8.2; 1 MB
/// 20, 13.9; 8 MB 60, 52; 16 MB 97, 94. On two: 9.8, 3.5; 10.6, 4.6; 16.4, 10.3; 48, 35; 76, 63. With more than four
/// nothing has been measured: there, only sizes at which our kernels are much faster.
constexpr bool peers_are_faster(int size, std::int64_t bytes) {
  const std::int64_t kib = 1024;
  return bytes <= (size > 4 ? 64 * kib : size > 2 ? 8192 * kib : 16384 * kib);
}

/// Blocks of our kernels while other work runs: each takes a multiprocessor from it. With 16 of them a step of
/// ResNet-18 on two H200s (128 images each) takes 2.995 ms, with 32 3.014, with 64, which are fastest alone, 3.054.
constexpr int kBlocksBeside = 16;

}  // namespace hpcdl::comm
