#include "hpcdl/ops/lm_head_loss/lm_head_loss.h"

#include "hpcdl/cuda/relative_exp.cuh"
#include "hpcdl/cuda/sweep.cuh"
#include "hpcdl/ops/cross_entropy/cross_entropy.h"
#include "hpcdl/ops/cross_entropy/far_lse.h"
#include "hpcdl/ops/lm_head_loss/chunks.h"
#include "hpcdl/ops/matmul/device_gemm.h"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 256;
constexpr float kInf = __builtin_inff();

GemmOperand whole(const View& v, bool transposed) { return {v.data(), v.dtype(), v.row_stride(), transposed}; }

void logits_of(Stream& s, float* d, std::int64_t ld, const View& h, const View& w, VocabChunk c) {
  gemm(s, {.m = h.rows(),
           .n = c.cols,
           .k = h.cols(),
           .compute = h.dtype(),
           .a = whole(h, false),
           .b = {rows_from(w, c.begin), w.dtype(), w.row_stride(), true},
           .out = {.d = d, .ld = ld}});
}

/// Statistics per row, over the chunks seen so far.
struct Stats {
  float *top, *sum, *at_target, *loss;
  Stats(const Tensor& t, std::int64_t rows)
      : top(t.ptr<float>()), sum(top + rows), at_target(sum + rows), loss(at_target + rows) {}
};

/// A block adds one row of a chunk. `copy`: destination of rounded logits, or null.
template <class T>
__global__ void __launch_bounds__(kThreads)
    fold_chunk(Stats s, const float* x, std::int64_t ld, T* copy, std::int64_t copy_ld, const std::int32_t* targets,
               VocabChunk c) {
  constexpr int N = kLanes<float>, kPacks = 4;
  __shared__ float memory[2][kWarp];
  const std::int64_t row = blockIdx.x;
  const float* in = x + row * ld;
  SumOfExp here;
  sweep<kThreads, kPacks, false>(in, c.cols, -kInf, 0, [&](std::int64_t col, const auto& v) {
    here.add(v);
    if (!copy) return;
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const std::int64_t at = col + k * kThreads * N, left = c.cols - at;
      write(copy + row * copy_ld + at, pack<T>(widen(v[k])), at < 0 ? static_cast<int>(-at) : 0,
            static_cast<int>(left < N ? left : N));
    }
  });
  here.over_block<kThreads>(memory);
  if (threadIdx.x != 0) return;
  const SumOfExp before = c.begin > 0 ? SumOfExp{s.top[row], s.sum[row]} : SumOfExp{};
  const float all = fmaxf(before.top, here.top), shift = finite(all);
  s.top[row] = all;
  s.sum[row] = before.relative_to(shift) + here.relative_to(shift);
  const std::int64_t target = targets[row], t = target - c.begin;
  if (c.begin == 0) s.at_target[row] = target < 0 ? 0.0f : __builtin_nanf("");
  if (target >= 0 && t >= 0 && t < c.cols) s.at_target[row] = in[t];
}

__global__ void __launch_bounds__(kThreads)
    finish_rows(Stats s, float* lse, const std::int32_t* targets, std::int64_t rows) {
  const std::int64_t r = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (r >= rows) return;
  const float log_sum = logf(s.sum[r]);
  if (lse) lse[r] = s.top[r] + log_sum, lse[rows + r] = lse_rest(s.top[r], log_sum);
  s.loss[r] = targets[r] < 0 ? 0.0f : (s.top[r] - s.at_target[r]) + log_sum;
}

/// d = (exp((x - lse) - rest) - onehot(target)) * dloss, for one chunk; d may be x, `rests` may be null.
template <class T>
__global__ void __launch_bounds__(kThreads)
    gradient_chunk(float* d, std::int64_t d_ld, const T* x, std::int64_t ld, const std::int32_t* targets,
                   const float* lse, const float* rests, const float* dloss, VocabChunk c) {
  constexpr int N = 4;
  const std::int64_t row = blockIdx.x;
  const std::int64_t target = targets[row], t = target - c.begin;
  const float g = dloss ? *dloss : 0.0f, shift = lse[row], rest = rests ? rests[row] : 0.0f;
  for (std::int64_t at = std::int64_t{threadIdx.x} * N; at < c.cols; at += kThreads * N) {
    const int n = static_cast<int>(c.cols - at < N ? c.cols - at : N);
    Lanes<N> v(0.0f);
    if (target >= 0) {
      const auto in = load<N>(x + row * ld + at, n);
      v = map<N>([&](int i) { return (exp2f(((in.v[i] - shift) - rest) * kLog2e) - (at + i == t ? 1.0f : 0.0f)) * g; });
    }
    store(d + row * d_ld + at, v, n);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    add_rows(T* out, std::int64_t stride, bool accumulate, const float* sum, std::int64_t cols) {
  constexpr int N = 4;
  T* to = out + blockIdx.x * stride;
  for (std::int64_t at = std::int64_t{threadIdx.x} * N; at < cols; at += kThreads * N) {
    const int n = static_cast<int>(cols - at < N ? cols - at : N);
    auto v = load<N>(sum + blockIdx.x * cols + at, n);
    if (accumulate) v = v + load<N>(static_cast<const T*>(to + at), n);
    store(to + at, v, n);
  }
}

/// dW[chunk] (+)= d^T h and sum (+)= d W[chunk]. The gradients d of logits are far below the range of f16, so they stay
/// f32 in that case.
void products(Stream& s, const Grad& dw, float* sum, const View& h, const View& w, const float* d, std::int64_t ld,
              VocabChunk c) {
  const DType compute = h.dtype() == DType::f16 ? DType::f32 : h.dtype();
  if (sum)
    gemm(s, {.m = h.rows(),
             .n = h.cols(),
             .k = c.cols,
             .compute = compute,
             .a = {d, DType::f32, ld, false},
             .b = {rows_from(w, c.begin), w.dtype(), w.row_stride(), false},
             .out = {.d = sum, .ld = h.cols(), .accumulate = c.begin > 0}});
  if (dw)
    gemm(s, {.m = c.cols,
             .n = h.cols(),
             .k = h.rows(),
             .compute = compute,
             .a = {d, DType::f32, ld, true},
             .b = whole(h, false),
             .out = {.d = const_cast<void*>(rows_from(dw, c.begin)),
                     .dtype = dw.dtype(),
                     .ld = dw.row_stride(),
                     .accumulate = dw.accumulate()}});
}

}  // namespace

void lm_head_loss(Stream& s, Tensor loss, Tensor count, Tensor lse, Tensor logits, View h, View w, View targets,
                  Tensor chunk, Tensor stats) {
  const auto rows = h.rows(), vocab = w[0];
  const auto* target = targets.ptr<std::int32_t>();
  const Stats st(stats, rows);
  const bool kept = logits && logits.size() > 0, in_place = kept && logits.dtype() == DType::f32;
  if (rows > 0) {
    for_chunks(LmHeadLoss::chunk(rows, vocab), vocab, [&](VocabChunk c) {
      float* x = in_place ? logits.ptr<float>() + c.begin : chunk.ptr<float>();
      const auto ld = in_place ? vocab : chunk.cols();
      logits_of(s, x, ld, h, w, c);
      visit_dtype(h.dtype(), [&]<class T>() {
        fold_chunk<<<blocks_for(rows, 1), kThreads, 0, queue(s)>>>(
            st, x, ld, kept && !in_place ? logits.ptr<T>() + c.begin : nullptr, vocab, target, c);
      });
      launched("lm_head_loss");
    });
    finish_rows<<<blocks_for(rows, kThreads), kThreads, 0, queue(s)>>>(st, lse ? lse.ptr<float>() : nullptr, target,
                                                                       rows);
    launched("lm_head_loss");
  }
  cross_entropy_sum(s, loss, count, View(st.loss, Spec{{rows}, DType::f32}, s.device()), targets);
}

void lm_head_loss_backward(Stream& s, Grad dh, Grad dw, View h, View w, View targets, View lse, View logits, View dloss,
                           Tensor chunk, Tensor sum) {
  const auto rows = h.rows(), vocab = w[0], ld = chunk.cols();
  const auto* target = targets.ptr<std::int32_t>();
  const float* g = dloss ? dloss.ptr<float>() : nullptr;
  const auto* shifts = lse.ptr<float>();
  const auto* rests = lse.size() == 2 * rows ? shifts + rows : nullptr;
  auto* d = chunk.ptr<float>();
  const bool kept = logits && logits.size() > 0;
  for_chunks(LmHeadLoss::chunk(rows, vocab), vocab, [&](VocabChunk c) {
    if (rows > 0 && !kept) {
      logits_of(s, d, ld, h, w, c);
      gradient_chunk<<<blocks_for(rows, 1), kThreads, 0, queue(s)>>>(d, ld, static_cast<const float*>(d), ld, target,
                                                                     shifts, rests, g, c);
    } else if (rows > 0) {
      visit_dtype(logits.dtype(), [&]<class T>() {
        gradient_chunk<<<blocks_for(rows, 1), kThreads, 0, queue(s)>>>(d, ld, logits.ptr<T>() + c.begin, vocab, target,
                                                                       shifts, rests, g, c);
      });
    }
    launched("lm_head_loss_backward");
    products(s, dw, dh ? sum.ptr<float>() : nullptr, h, w, d, ld, c);
  });
  if (!dh || rows == 0) return;
  visit_dtype(dh.dtype(), [&]<class T>() {
    add_rows<<<blocks_for(rows, 1), kThreads, 0, queue(s)>>>(dh.ptr<T>(), dh.row_stride(), dh.accumulate(),
                                                             sum.ptr<float>(), dh.cols());
    launched("lm_head_loss_backward");
  });
}

}  // namespace hpcdl::cuda
