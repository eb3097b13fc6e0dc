#include "hpcdl/ops/expert_mlp/expert_mlp.h"

#include "hpcdl/cuda/lanes.cuh"
#include "hpcdl/cuda/launch.h"
#include "hpcdl/cuda/overlap.cuh"
#include "hpcdl/cuda/reduce.cuh"
#include "hpcdl/ops/fuse/activations.h"

// A warp has one row of a weight matrix, which it multiplies by the chosen tokens, kTokens at a time. Which tokens those
// are is known only on the GPU: every block finds them itself.

namespace hpcdl::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp, kTokens = 8, kListed = 1024;

struct Expert {
  void *y, *hidden;  // (T, K), (T, N)
  const void *base, *x, *gate, *up, *down;
  const float* weights;
  const std::int32_t* experts;
  std::int64_t y_stride, base_stride, x_stride, gate_stride, up_stride, down_stride;
  int tokens, count, expert, width, inner;  // T, experts of a token, K, N
  bool gelu;
};

/// f(tokens, their weights, how many) for up to kTokens tokens at a time that chose the expert; called by all threads.
template <class F> __device__ void for_chosen(const Expert& p, F&& f) {
  __shared__ int list[kListed];
  __shared__ float weight[kListed];
  __shared__ int found;
  for (int begin = 0; begin < p.tokens; begin += kListed) {
    const int end = begin + kListed < p.tokens ? begin + kListed : p.tokens;
    __syncthreads();
    if (threadIdx.x < kWarp) {  // one warp, in the order of the tokens
      int n = 0;
      for (int t0 = begin; t0 < end; t0 += kWarp) {
        const int t = t0 + static_cast<int>(threadIdx.x);
        float mine = 0;
        bool chosen = false;
        for (int i = 0; t < end && i < p.count; ++i)
          if (p.experts[t * p.count + i] == p.expert) chosen = true, mine = p.weights[t * p.count + i];
        const unsigned all = __ballot_sync(~0u, chosen);
        const int at = n + __popc(all & ((1u << threadIdx.x) - 1));
        if (chosen) list[at] = t, weight[at] = mine;
        n += __popc(all);
      }
      if (threadIdx.x == 0) found = n;
    }
    __syncthreads();
    for (int i = 0; i < found; i += kTokens) f(list + i, weight + i, found - i < kTokens ? found - i : kTokens);
  }
}

/// dots[t] = row . (row t of the operand), for `n` tokens.
template <class T>
__device__ void dots(float (&sum)[kTokens], const T* row, const T* x, std::int64_t stride, const int* tokens, int n,
                     int width) {
  constexpr int N = kLanes<T>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int t = 0; t < kTokens; ++t) sum[t] = 0;
  for (int c = lane * N; c < width; c += kWarp * N) {
    const auto w = widen(read<N>(row + c, 0, width - c, T{}));
#pragma unroll
    for (int t = 0; t < kTokens; ++t)
      if (t < n) sum[t] += hpcdl::cuda::sum(w * widen(read<N>(x + tokens[t] * stride + c, 0, width - c, T{})));
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) sum[t] = warp_reduce(sum[t], Sum{});
}

template <class T> __global__ void __launch_bounds__(kThreads) expert_hidden(const __grid_constant__ Expert p) {
  const int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp;
  for_chosen(p, [&](const int* tokens, const float*, int n) {
    if (row >= p.inner) return;
    float g[kTokens], u[kTokens];
    const auto* x = static_cast<const T*>(p.x);
    dots(g, static_cast<const T*>(p.gate) + row * p.gate_stride, x, p.x_stride, tokens, n, p.width);
    dots(u, static_cast<const T*>(p.up) + row * p.up_stride, x, p.x_stride, tokens, n, p.width);
    if (threadIdx.x % kWarp != 0) return;
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      if (t >= n) break;
      const Lanes<1> a(widen(narrow<T>(g[t]))), b(widen(narrow<T>(u[t])));
      const auto v = (p.gelu ? fuse::GeluTanh::value(a) : fuse::Silu::value(a)) * b;
      static_cast<T*>(p.hidden)[std::int64_t{tokens[t]} * p.inner + row] = narrow<T>(v.v[0]);
    }
  });
}

template <class T> __global__ void __launch_bounds__(kThreads) expert_sum(const __grid_constant__ Expert p) {
  const int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp;
  for_chosen(p, [&](const int* tokens, const float* weights, int n) {
    if (row >= p.width) return;
    float d[kTokens];
    dots(d, static_cast<const T*>(p.down) + row * p.down_stride, static_cast<const T*>(p.hidden), p.inner, tokens, n,
         p.inner);
    if (threadIdx.x % kWarp != 0) return;
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      if (t >= n) break;
      T* const to = static_cast<T*>(p.y) + tokens[t] * p.y_stride + row;
      *to = narrow<T>(widen(*to) + weights[t] * widen(narrow<T>(d[t])));
    }
  });
}

}  // namespace

void expert_mlp(Stream& s, Tensor y, View base, View x, View weights, View experts, const Matrix<View>& gate,
                const Matrix<View>& up, const Matrix<View>& down, Tensor hidden, const ExpertMlp::Args& a) {
  for (const auto* m : {&gate, &up, &down})
    require(!m->quantized() && !m->bias && m->w.dtype() == x.dtype(), ExpertMlp::name,
            "a GPU needs the matrices of experts in the type of the activations, {}, without biases, got {}{}: use "
            "another --dtype, or the CPU",
            dtype_name(x.dtype()), dtype_name(m->w.dtype()), m->bias ? " with a bias" : "");
  if (y.data() != base.data()) copy(s, y, base);
  if (y.size() == 0) return;
  const Expert p{.y = y.data(),
                 .hidden = hidden.data(),
                 .base = base.data(),
                 .x = x.data(),
                 .gate = gate.w.data(),
                 .up = up.w.data(),
                 .down = down.w.data(),
                 .weights = weights.ptr<float>(),
                 .experts = experts.ptr<std::int32_t>(),
                 .y_stride = y.row_stride(),
                 .base_stride = base.row_stride(),
                 .x_stride = x.row_stride(),
                 .gate_stride = gate.w.row_stride(),
                 .up_stride = up.w.row_stride(),
                 .down_stride = down.w.row_stride(),
                 .tokens = static_cast<int>(x.rows()),
                 .count = static_cast<int>(experts.cols()),
                 .expert = a.expert,
                 .width = static_cast<int>(x.cols()),
                 .inner = static_cast<int>(gate.w[0]),
                 .gelu = a.gate == Swiglu::Gate::gelu_tanh};
  visit_dtype(x.dtype(), [&]<class T>() {
    expert_hidden<T><<<blocks_for(p.inner, kWarps), kThreads, 0, queue(s)>>>(p);
    launched(ExpertMlp::name.data());
    expert_sum<T><<<blocks_for(p.width, kWarps), kThreads, 0, queue(s)>>>(p);
    launched(ExpertMlp::name.data());
  });
}

}  // namespace hpcdl::cuda
