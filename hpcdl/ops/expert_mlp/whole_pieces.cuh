#pragma once
// Results of wgmma as pieces of 16 bytes. Four neighbouring threads hold a row of a sum in pairs of columns; written as
// they are, each pair would be a store of its own, and the stores of a tile would take as long as a fifth of its
// products.

#include "hpcdl/cuda/lanes.cuh"
#include "hpcdl/cuda/launch.h"

namespace hpcdl::cuda {

/// Word i of thread q of four neighbours becomes word q of thread i. Called by whole warps.
__device__ inline void exchange_in_four(unsigned (&w)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
  const unsigned a = __shfl_xor_sync(~0u, odd ? w[0] : w[1], 1), b = __shfl_xor_sync(~0u, odd ? w[2] : w[3], 1);
  w[0] = odd ? a : w[0], w[1] = odd ? w[1] : a, w[2] = odd ? b : w[2], w[3] = odd ? w[3] : b;
  const unsigned c = __shfl_xor_sync(~0u, high ? w[0] : w[2], 2), d = __shfl_xor_sync(~0u, high ? w[1] : w[3], 2);
  w[0] = high ? c : w[0], w[1] = high ? d : w[1], w[2] = high ? w[2] : c, w[3] = high ? w[3] : d;
}

/// Of kColumns columns of a row, of which pair(j) gives this thread's two in columns 8 j + threadIdx.x % 4 * 2 and the
/// next: write(column, piece) for the pieces that this thread is to write. Called by whole warps.
template <class T, int kColumns, class Pair, class Write> __device__ void for_each_piece(Pair&& pair, Write&& write) {
  const int place = static_cast<int>(threadIdx.x) % 4;
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int j = 0; j < kColumns / 8; j += 4) {
      Pack<T, 8> piece;
#pragma unroll
      for (int i = 0; i < 4; ++i) piece.w[i] = pack<T>(pair(j + i)).w[0];
      exchange_in_four(piece.w);
      write((j + place) * 8, piece);
    }
  } else {
#pragma unroll
    for (int j = 0; j < kColumns / 8; j += 2) {
      const bool odd = place & 1;
      const Lanes<2> first = pair(j), second = pair(j + 1);
      const Lanes<2> mine = odd ? second : first, other = odd ? first : second;
      const float a = __shfl_xor_sync(~0u, other.v[0], 1), b = __shfl_xor_sync(~0u, other.v[1], 1);
      Pack<T, 4> piece;
      piece.set(0, odd ? a : mine.v[0]), piece.set(1, odd ? b : mine.v[1]);
      piece.set(2, odd ? mine.v[0] : a), piece.set(3, odd ? mine.v[1] : b);
      write((j + place % 2) * 8 + place / 2 * 4, piece);
    }
  }
}

}  // namespace hpcdl::cuda
