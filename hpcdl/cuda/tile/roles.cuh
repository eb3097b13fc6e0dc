#pragma once
// Warps of a block with different roles: consumer warpgroups, then a warpgroup of producers. Kernels of sm_90a, compiled
// with __launch_bounds__(kThreads<Consumers>, 1).

#include "hpcdl/cuda/warpgroup.cuh"

namespace hpcdl::cuda {

/// kWarps warps, in each of which kThreads threads (1 or 32) produce, with kRegisters registers; 0: as launched.
template <int kRegisters_, int kWarps_ = 1, int kThreads_ = 1> struct Producers {
  static constexpr int kRegisters = kRegisters_, kWarps = kWarps_, kThreads = kThreads_;
};
template <int kWarpgroups_, int kRegisters_> struct Consumers {
  static constexpr int kWarpgroups = kWarpgroups_, kRegisters = kRegisters_;
};

/// produce(warp of its warpgroup) or consume(warpgroup). Warps of producers have not converged after it.
template <class P, class C, class F, class G> __device__ void roles(F&& produce, G&& consume) {
  const int warp = warp_index();
  if (warp / 4 == C::kWarpgroups) {
    if constexpr (P::kRegisters > 0) release_registers<P::kRegisters>();
    if (warp % 4 < P::kWarps && (P::kThreads > 1 || elect_one())) produce(warp - 4 * C::kWarpgroups);
  } else {
    if constexpr (C::kRegisters > 0) claim_registers<C::kRegisters>();
    consume(warp / 4);
  }
}

}  // namespace hpcdl::cuda
