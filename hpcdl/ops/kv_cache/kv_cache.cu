#include "hpcdl/ops/kv_cache/kv_cache.h"

#include "hpcdl/cuda/lanes.cuh"
#include "hpcdl/cuda/overlap.cuh"

namespace hpcdl::cuda {
namespace {

struct Append {
  void* cache[2];  // for k and v
  const void* x[2];
  const StepParams* params;
  unsigned first;  // index of the cache of blockIdx.y 0: 0 or 1
  std::int64_t tokens[2], cols[2], capacity[2], cache_strides[2][2], x_strides[2][2];  // by batch and token
};

/// A block copies one token; a token for which the cache has no room is skipped, never written elsewhere. blockIdx.y: k
/// or v.
template <class To, class From> __global__ void __launch_bounds__(128) append(const __grid_constant__ Append a) {
  constexpr int N = kLanes<From>;
  let_next_begin();
  await_previous();
  const unsigned which = a.first + blockIdx.y;
  const std::int64_t b = blockIdx.x / a.tokens[which], t = blockIdx.x - b * a.tokens[which],
                     row = a.params->position + t;
  if (row < 0 || row >= a.capacity[which]) return;
  To* to = static_cast<To*>(a.cache[which]) + b * a.cache_strides[which][0] + row * a.cache_strides[which][1];
  const From* from = static_cast<const From*>(a.x[which]) + b * a.x_strides[which][0] + t * a.x_strides[which][1];
  const int cols = static_cast<int>(a.cols[which]);
  constexpr int kStep = 128 * N;
  for (int i = static_cast<int>(threadIdx.x) * N; i < cols; i += 2 * kStep) {
    const auto first = read<N>(from + i, 0, cols - i, From{}),
               second = read<N>(from + i + kStep, 0, cols - i - kStep, From{});
    store(to + i, widen(first), cols - i);
    store(to + i + kStep, widen(second), cols - i - kStep);
  }
}

}  // namespace

void kv_cache(Stream& s, Tensor k_cache, Tensor v_cache, View k, View v) {
  const auto strides = [](const View& t, std::int64_t (&to)[2]) { to[0] = t.strides()[0], to[1] = t.strides()[1]; };
  Append a{{k_cache.data(), v_cache.data()},
           {k.data(), v.data()},
           s.kernel_params(),
           0,
           {k[1], v[1]},
           {k.cols(), v.cols()},
           {k_cache[1], v_cache[1]},
           {},
           {}};
  strides(k_cache, a.cache_strides[0]), strides(v_cache, a.cache_strides[1]);
  strides(k, a.x_strides[0]), strides(v, a.x_strides[1]);
  const auto launch = [&](unsigned first, unsigned count, const View& x, DType to) {
    if (x.size() == 0) return;
    a.first = first;
    visit_dtype(x.dtype(), [&]<class From>() {
      visit_dtype(to, [&]<class To>() {
        launch_overlapped(queue(s), overlaps(s, x[0] * x[1]), append<To, From>,
                          {.grid = {blocks_for(x[0] * x[1], 1), count}, .block = 128}, "kv_cache", a);
      });
    });
  };
  if (k.dtype() == v.dtype() && k_cache.dtype() == v_cache.dtype() && k[0] == v[0] && k[1] == v[1])
    return launch(0, 2, k, k_cache.dtype());
  launch(0, 1, k, k_cache.dtype());
  launch(1, 1, v, v_cache.dtype());
}

}  // namespace hpcdl::cuda
