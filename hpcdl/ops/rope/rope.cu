#include "hpcdl/ops/rope/rope.h"

#include "hpcdl/cuda/lanes.cuh"
#include "hpcdl/cuda/overlap.cuh"

namespace hpcdl::cuda {
namespace {

struct Rotation {
  void* y;
  const void* x;
  const float* table;
  const std::int32_t* places;  // of the tokens; null: their index in the sequence
  std::int64_t batch, tokens, heads, half, positions;
  std::int64_t y_strides[3], x_strides[3];  // of batch, token, head
  float sign;
  bool accumulate;
  int rest;  // elements of a head after those that are rotated
};

/// Adds or copies the elements of the heads of a token that are not rotated.
template <class T> __device__ void copy_rest(const Rotation& r, const T* x, T* y) {
  for (int h = static_cast<int>(threadIdx.y); h < r.heads; h += static_cast<int>(blockDim.y))
    for (int i = static_cast<int>(threadIdx.x); i < r.rest; i += static_cast<int>(blockDim.x)) {
      T* const to = y + h * r.y_strides[2] + i;
      const T v = x[h * r.x_strides[2] + i];
      *to = r.accumulate ? narrow<T>(widen(*to) + widen(v)) : v;
    }
}

constexpr int kHeads = 4;

/// A block rotates one token. A thread processes up to N pairs (threadIdx.x) of kHeads heads at a time, which share the
/// angles. H200, us, bf16, 8 x 2048 tokens, 32 heads of 128 (copy 66): two heads at a time 77, four 71.
template <class T> __global__ void __launch_bounds__(256) rotate(Rotation r) {
  constexpr int N = kLanes<T>;
  let_next_begin();
  await_previous();
  const std::int64_t token = blockIdx.x, b = token / r.tokens, t = token - b * r.tokens,
                     position = r.places ? r.places[token] : t;
  const int half = static_cast<int>(r.half), heads = static_cast<int>(r.heads), high = static_cast<int>(blockDim.y);
  const float* angles = r.table + position * 2 * half;
  if (r.rest > 0)
    copy_rest(r, static_cast<const T*>(r.x) + b * r.x_strides[0] + t * r.x_strides[1] + 2 * half,
              static_cast<T*>(r.y) + b * r.y_strides[0] + t * r.y_strides[1] + 2 * half);
  for (int at = static_cast<int>(threadIdx.x) * N; at < half; at += static_cast<int>(blockDim.x) * N) {
    const int n = half - at;
    const T* x = static_cast<const T*>(r.x) + b * r.x_strides[0] + t * r.x_strides[1] + at;
    T* y = static_cast<T*>(r.y) + b * r.y_strides[0] + t * r.y_strides[1] + at;
    Lanes<N> c(__builtin_nanf("")),
        s(__builtin_nanf(""));  // a position beyond the table is visible in the result
    if (position >= 0 && position < r.positions)
      c = load<N>(angles + at, n), s = load<N>(angles + half + at, n) * Lanes<N>(r.sign);
    for (int first = static_cast<int>(threadIdx.y); first < heads; first += kHeads * high) {
      Pack<T, N> left[kHeads], right[kHeads];
#pragma unroll
      for (int k = 0; k < kHeads; ++k) {
        const int here = first + k * high < heads ? n : 0;
        left[k] = read<N>(x + (first + k * high) * r.x_strides[2], 0, here, T{});
        right[k] = read<N>(x + (first + k * high) * r.x_strides[2] + half, 0, here, T{});
      }
#pragma unroll
      for (int k = 0; k < kHeads; ++k) {
        if (first + k * high >= heads) break;
        T* to = y + (first + k * high) * r.y_strides[2];
        const auto x1 = widen(left[k]), x2 = widen(right[k]);
        auto y1 = fma(x1, c, Lanes<N>(0.0f) - x2 * s), y2 = fma(x2, c, x1 * s);
        if (r.accumulate)
          y1 = y1 + load<N>(static_cast<const T*>(to), n), y2 = y2 + load<N>(static_cast<const T*>(to + half), n);
        store(to, y1, n);
        store(to + half, y2, n);
      }
    }
  }
}

}  // namespace

void rope(Stream& s, Grad y, View x, View table, View positions, float sign, const Rope::Args& a) {
  const std::int64_t d = a.head_dim > 0 ? a.head_dim : x.cols();
  const bool split = x.rank() == 4;
  const Rotation r{y.data(),
                   x.data(),
                   table.ptr<float>(),
                   positions ? positions.ptr<std::int32_t>() : nullptr,
                   x[0],
                   x[1],
                   split ? x[2] : x.cols() / d,
                   table[1] / 2,
                   table[0],
                   {y.strides()[0], y.strides()[1], split ? y.strides()[2] : d},
                   {x.strides()[0], x.strides()[1], split ? x.strides()[2] : d},
                   sign,
                   y.accumulate(),
                   static_cast<int>(d - table[1])};
  visit_dtype(x.dtype(), [&]<class T>() {
    const std::int64_t tokens = r.batch * r.tokens, packs = (r.half + kLanes<T> - 1) / kLanes<T>;
    if (tokens * r.heads * packs == 0) return;
    const auto wide = static_cast<unsigned>(packs < 128 ? packs : 128);
    const std::int64_t high = (r.heads + kHeads - 1) / kHeads, most = 256 / wide;
    const dim3 block(wide, static_cast<unsigned>(high < most ? high : most));
    launch_overlapped(queue(s), overlaps(s, tokens), rotate<T>, {.grid = blocks_for(tokens, 1), .block = block}, "rope",
                      r);
  });
}

}  // namespace hpcdl::cuda
