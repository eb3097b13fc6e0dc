#include "hpcdl/ops/kv_write/kv_write.h"

#include "hpcdl/cuda/lanes.cuh"
#include "hpcdl/cuda/overlap.cuh"

namespace hpcdl::cuda {
namespace {

struct Rows {
  void* pool[2];  // for k and v
  const void* x[2];
  const std::int64_t* slots;
  unsigned first;                    // index of the pool of blockIdx.y 0: 0 or 1
  int tokens, cols, width, cells;    // tokens of a sequence; of a row; of a head; slots of the pool
  std::int64_t page, strides[2][2];  // elements of a page; by batch and token of x
};

/// A block stores one token; a token without a slot in the pool is skipped, never written elsewhere. blockIdx.y: k or v.
/// kWhole: heads begin at multiples of a thread's elements.
template <class To, class From, bool kWhole>
__global__ void __launch_bounds__(128) store_rows(const __grid_constant__ Rows a) {
  constexpr int N = kLanes<From>;
  let_next_begin();
  await_previous();
  const unsigned which = a.first + blockIdx.y;
  const int row = static_cast<int>(blockIdx.x), b = row / a.tokens, t = row - b * a.tokens;
  const std::int64_t slot = a.slots[row];
  if (slot < 0 || slot >= a.cells) return;
  To* const to = static_cast<To*>(a.pool[which]) + slot / kPageTokens * a.page + slot % kPageTokens * a.width;
  const From* from = static_cast<const From*>(a.x[which]) + b * a.strides[which][0] + t * a.strides[which][1];
  const auto place = [&](int i) { return to + (i / a.width * static_cast<int>(kPageTokens) * a.width + i % a.width); };
  if constexpr (kWhole) {
    for (int i = static_cast<int>(threadIdx.x) * N; i < a.cols; i += 128 * N)
      store(place(i), widen(read<N>(from + i, 0, a.cols - i, From{})), a.cols - i);
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < a.cols; i += 128) *place(i) = narrow<To>(widen(from[i]));
  }
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
         .width = static_cast<int>(k_pool[3]),
         .cells = static_cast<int>(k_pool[0] * kPageTokens),
         .page = k_pool.strides()[0],
         .strides = {{k.strides()[0], k.strides()[1]}, {v.strides()[0], v.strides()[1]}}};
  const auto launch = [&](unsigned first, unsigned count, const View& x, DType to) {
    a.first = first;
    visit_dtype(x.dtype(), [&]<class From>() {
      visit_dtype(to, [&]<class To>() {
        launch_overlapped(queue(s), overlaps(s, x[0] * x[1]),
                          a.width % kLanes<From> == 0 ? store_rows<To, From, true> : store_rows<To, From, false>,
                          {.grid = {blocks_for(x[0] * x[1], 1), count}, .block = 128}, "kv_write", a);
      });
    });
  };
  if (k.dtype() == v.dtype() && k_pool.dtype() == v_pool.dtype()) return launch(0, 2, k, k_pool.dtype());
  launch(0, 1, k, k_pool.dtype());
  launch(1, 1, v, v_pool.dtype());
}

}  // namespace hpcdl::cuda
