#include "hpcdl/ops/kv_write/kv_write.h"

#include "hpcdl/cuda/lanes.cuh"
#include "hpcdl/cuda/overlap.cuh"
#include "hpcdl/ops/kv_write/codes.h"

namespace hpcdl::cuda {
namespace {

struct Rows {
  void* pool[2];  // for k and v
  const void* x[2];
  const std::int64_t* slots;
  unsigned first;                  // index of the pool of blockIdx.y 0: 0 or 1
  int tokens, cols, width, cells;  // tokens of a sequence; of a row; of a head; slots of the pool
  std::int64_t strides[2][2];      // by batch and token of x
  std::int64_t page = 0;           // elements of a page

  /// The slot of a token, or -1 if there is none in the pool: then nothing is written.
  __device__ std::int64_t slot(int row) const { return slots[row] < cells ? slots[row] : -1; }
  template <class From> __device__ const From* from(unsigned which, int row) const {
    const int b = row / tokens, t = row - b * tokens;
    return static_cast<const From*>(x[which]) + b * strides[which][0] + t * strides[which][1];
  }
};

/// A block stores one token. blockIdx.y: k or v. kWhole: heads begin at multiples of a thread's elements.
template <class To, class From, bool kWhole>
__global__ void __launch_bounds__(128) store_rows(const __grid_constant__ Rows a) {
  constexpr int N = kLanes<From>;
  let_next_begin();
  await_previous();
  const unsigned which = a.first + blockIdx.y;
  const int row = static_cast<int>(blockIdx.x);
  const std::int64_t slot = a.slot(row);
  if (slot < 0) return;
  To* const to = static_cast<To*>(a.pool[which]) + slot / kPageTokens * a.page + slot % kPageTokens * a.width;
  const From* const from = a.from<From>(which, row);
  const auto place = [&](int i) { return to + (i / a.width * static_cast<int>(kPageTokens) * a.width + i % a.width); };
  if constexpr (kWhole) {
    for (int i = static_cast<int>(threadIdx.x) * N; i < a.cols; i += 128 * N)
      store(place(i), widen(read<N>(from + i, 0, a.cols - i, From{})), a.cols - i);
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < a.cols; i += 128) *place(i) = narrow<To>(widen(from[i]));
  }
}

/// The same for a pool of codes: a warp stores a head at a time.
template <class To, class From> __global__ void __launch_bounds__(128) store_codes(const __grid_constant__ Rows a) {
  constexpr int kMost = 8;  // elements of a lane that stay in registers
  let_next_begin();
  await_previous();
  const unsigned which = a.first + blockIdx.y;
  const int row = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x) % kWarp, d = a.width;
  const std::int64_t slot = a.slot(row);
  if (slot < 0) return;
  const int token = static_cast<int>(slot % kPageTokens), size = static_cast<int>(kPageTokens) * (d + kScaleCodes);
  for (int h = static_cast<int>(threadIdx.x) / kWarp; h * d < a.cols; h += 128 / kWarp) {
    const From* const from = a.from<From>(which, row) + h * d;
    To* const to = static_cast<To*>(a.pool[which]) + slot / kPageTokens * a.page + h * size;
    float x[kMost];
    unsigned largest = 0;
    const auto see = [&](float v) { largest = ::max(largest, magnitude_bits(v)); };
#pragma unroll
    for (int i = 0; i < kMost; ++i) see(x[i] = lane + i * kWarp < d ? widen(from[lane + i * kWarp]) : 0.0f);
    for (int i = lane + kMost * kWarp; i < d; i += kWarp) see(widen(from[i]));
    for (int apart = kWarp / 2; apart > 0; apart /= 2) largest = ::max(largest, __shfl_xor_sync(~0u, largest, apart));
    const float scale = row_scale<To>(largest), inverse = 1 / scale;
#pragma unroll
    for (int i = 0; i < kMost; ++i)
      if (lane + i * kWarp < d) to[token * d + lane + i * kWarp] = code_of<To>(x[i], inverse);
    for (int i = lane + kMost * kWarp; i < d; i += kWarp) to[token * d + i] = code_of<To>(widen(from[i]), inverse);
    if (lane == 0) reinterpret_cast<float*>(to + kPageTokens * d)[token] = scale;
  }
}

template <class To, class From> auto kernel_for(const Rows& a) {
  if constexpr (kHasScales<To>) return store_codes<To, From>;
  else return a.width % kLanes<From> == 0 ? store_rows<To, From, true> : store_rows<To, From, false>;
}

}  // namespace

void kv_write(Stream& s, Tensor k_pool, Tensor v_pool, View k, View v, View slots) {
  if (k.size() == 0) return;
  Rows a{.pool = {k_pool.data(), v_pool.data()},
         .x = {k.data(), v.data()},
         .slots = slots.ptr<std::int64_t>(),
         .first = 0,
         .tokens = static_cast<int>(k[1]),
         .cols = static_cast<int>(k.cols()),
         .width = static_cast<int>(head_dim_of(k_pool.spec())),
         .cells = static_cast<int>(k_pool[0] * kPageTokens),
         .strides = {{k.strides()[0], k.strides()[1]}, {v.strides()[0], v.strides()[1]}}};
  const auto launch = [&](unsigned first, unsigned count, const View& x, const Tensor& pool) {
    a.first = first, a.page = pool.strides()[0];
    visit_dtype(x.dtype(), [&]<class From>() {
      visit_pool_dtype(pool.dtype(), [&]<class To>() {
        launch_overlapped(queue(s), overlaps(s, x[0] * x[1]), kernel_for<To, From>(a),
                          {.grid = {blocks_for(x[0] * x[1], 1), count}, .block = 128}, "kv_write", a);
      });
    });
  };
  if (k.dtype() == v.dtype() && k_pool.dtype() == v_pool.dtype()) return launch(0, 2, k, k_pool);
  launch(0, 1, k, k_pool);
  launch(1, 1, v, v_pool);
}

}  // namespace hpcdl::cuda
