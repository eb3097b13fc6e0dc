#include "hpcdl/ops/kv_cache/kv_cache.h"

#include "hpcdl/cuda/lanes.h"
#include "hpcdl/cuda/launch.h"

namespace hpcdl::cuda {
namespace {

struct Append {
  void* cache;
  const void* x;
  const StepParams* params;
  std::int64_t tokens, cols, capacity, cache_strides[2], x_strides[2];  // of batch and token
};

/// A block copies one token; one that the cache has no room for is left out, never written elsewhere.
template <class To, class From> __global__ void __launch_bounds__(128) append(Append a) {
  constexpr int N = kLanes<From>;
  const std::int64_t b = blockIdx.x / a.tokens, t = blockIdx.x % a.tokens, row = a.params->position + t;
  if (row < 0 || row >= a.capacity) return;
  To* to = static_cast<To*>(a.cache) + b * a.cache_strides[0] + row * a.cache_strides[1];
  const From* from = static_cast<const From*>(a.x) + b * a.x_strides[0] + t * a.x_strides[1];
  for (std::int64_t i = std::int64_t{threadIdx.x} * N; i < a.cols; i += 128 * N) {
    const int n = static_cast<int>(a.cols - i < N ? a.cols - i : N);
    store(to + i, load<N>(from + i, n), n);
  }
}

void append(Stream& s, const Tensor& cache, const View& x) {
  if (x.size() == 0) return;
  const Append a{cache.data(), x.data(), s.kernel_params(), x[1], x.cols(), cache[1], {cache.strides()[0], cache.strides()[1]},
                 {x.strides()[0], x.strides()[1]}};
  visit_dtype(x.dtype(), [&]<class From>() {
    visit_dtype(cache.dtype(), [&]<class To>() {
      append<To, From><<<blocks_for(x[0] * x[1], 1), 128, 0, queue(s)>>>(a);
      launched("kv_cache");
    });
  });
}

}  // namespace

void kv_cache(Stream& s, Tensor k_cache, Tensor v_cache, View k, View v) {
  append(s, k_cache, k);
  append(s, v_cache, v);
}

}  // namespace hpcdl::cuda
