#include "hpcdl/ops/quant_linear/quant_decode.h"

#include "hpcdl/cuda/launch.h"
#include "hpcdl/ops/quant_linear/quant_device.cuh"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 256, kAtOnce = 4;  // pieces that a thread loads before it stores the first

/// Threads (pieces), blocks (rows, pieces). Fewer blocks whose warps take rows in turns are slower: 28672 x 8192 to bf16 on an
/// H200, of the speed of a copy, int8 0.87 | 0.58, Q4_K 0.66 | 0.47.
template <QuantFormat format, int alignment, class T>
__global__ void __launch_bounds__(kThreads)
    decode_rows(QuantWeights w, std::int64_t r0, unsigned first, unsigned pieces, T* __restrict__ to) {
  const float* values = table_of_block<format>(w);
  const QuantRow<format, alignment> row_of_w(w, r0 + blockIdx.x, values);
  const unsigned begin = blockIdx.y * kThreads * kAtOnce + threadIdx.x;
  T* const row = to + (std::int64_t{blockIdx.x} * pieces - first) * 8;
  Piece piece[kAtOnce];
#pragma unroll
  for (unsigned i = 0; i < kAtOnce; ++i)
    if (begin + i * kThreads < pieces) piece[i] = read_weights(row_of_w, first + begin + i * kThreads);
#pragma unroll
  for (unsigned i = 0; i < kAtOnce; ++i) {
    if (begin + i * kThreads >= pieces) return;
    const Piece& p = piece[i];
    if constexpr (piece_is_one_run(format)) {
      store(row + p.first, map<8>([&](int j) { return p.v[j]; }));
    } else {
      store(row + p.first, map<4>([&](int j) { return p.v[j]; }));
      store(row + p.second, map<4>([&](int j) { return p.v[4 + j]; }));
    }
  }
}

}  // namespace

void quant_decode(Stream& s, void* to, DType type, const QuantMatrix& w, std::int64_t r0, std::int64_t rows,
                  std::int64_t k0, std::int64_t columns) {
  if (rows == 0 || columns == 0) return;
  const QuantWeights weights(w);
  const auto first = static_cast<unsigned>(k0 / 8), pieces = static_cast<unsigned>(columns / 8);
  visit_dtype(type, [&]<class T>() {
    visit_quant_format(w, [&]<QuantFormat format, int alignment>() {
      const dim3 blocks(static_cast<unsigned>(rows), blocks_for(pieces, kThreads * kAtOnce));
      decode_rows<format, alignment>
          <<<blocks, kThreads, 0, queue(s)>>>(weights, r0, first, pieces, static_cast<T*>(to));
      launched("quant_decode");
    });
  });
}

}  // namespace hpcdl::cuda
