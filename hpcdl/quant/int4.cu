#include "hpcdl/cuda/launch.h"
#include "hpcdl/ops/int4_linear/int4_widen.h"
#include "hpcdl/quant/int4_device.h"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 128;

/// Position of a block of eight values of one row: 4 bytes of `packed`.
__device__ std::int64_t word_at(std::int64_t row, std::int64_t k, std::int64_t n, std::int64_t depth) {
  const std::int64_t tile = row / int4::kTileRows * int4::kTileRows;
  return int4::packed_at(tile, depth) + int4::byte_of(int4::tile_rows(tile, n), row - tile, k);
}

/// Calls f(row, first of eight columns, their position in `packed`): a block of threads handles one row.
template <class F> __device__ void for_words(std::int64_t n, std::int64_t depth, F&& f) {
  const std::int64_t row = blockIdx.x;
  for (std::int64_t k = std::int64_t{threadIdx.x} * 8; k < depth; k += kThreads * 8)
    f(row, k, word_at(row, k, n, depth));
}

__global__ void __launch_bounds__(kThreads)
    pack_rows(std::uint8_t* packed, const std::uint8_t* q, std::int64_t n, std::int64_t depth) {
  for_words(n, depth, [&](std::int64_t row, std::int64_t k, std::int64_t at) {
    const std::uint8_t* from = q + row * depth + k;
#pragma unroll
    for (int i = 0; i < 4; ++i) packed[at + i] = static_cast<std::uint8_t>((from[i] & 15) | (from[i + 4] & 15) << 4);
  });
}

__global__ void __launch_bounds__(kThreads)
    unpack_rows(std::uint8_t* q, const std::uint8_t* packed, std::int64_t n, std::int64_t depth) {
  for_words(n, depth, [&](std::int64_t row, std::int64_t k, std::int64_t at) {
    std::uint8_t* to = q + row * depth + k;
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = packed[at + i] & 15, to[i + 4] = packed[at + i] >> 4;
  });
}

}  // namespace

void pack_int4(Stream& s, Tensor packed, View q) {
  if (q.size() == 0) return;
  pack_rows<<<blocks_for(q[0], 1), kThreads, 0, queue(s)>>>(packed.ptr<std::uint8_t>(), q.ptr<std::uint8_t>(), q[0],
                                                            q[1]);
  launched("int4_pack");
}

void unpack_int4(Stream& s, Tensor q, View packed) {
  if (q.size() == 0) return;
  unpack_rows<<<blocks_for(q[0], 1), kThreads, 0, queue(s)>>>(q.ptr<std::uint8_t>(), packed.ptr<std::uint8_t>(), q[0],
                                                              q[1]);
  launched("int4_unpack");
}

void dequantize_int4(Stream& s, Tensor out, const int4::Weight& w) {
  if (out.size() == 0) return;
  int4_widen(s, out.data(), out.dtype(), w, 0, w.n());
}

}  // namespace hpcdl::cuda
