#include "hpcdl/ops/lm_head_loss/lm_head_loss.h"

#include "hpcdl/ops/cross_entropy/cross_entropy.h"
#include "hpcdl/ops/cross_entropy/far_lse.h"
#include "hpcdl/ops/cross_entropy/log_sum_exp.h"
#include "hpcdl/ops/lm_head_loss/chunks.h"
#include "hpcdl/ops/matmul/gemm.h"
#include "hpcdl/ops/rows.h"

namespace hpcdl::cpu {
namespace {

namespace ep = epilogue;

constexpr float kNaN = __builtin_nanf("");
constexpr std::int64_t kCold = 4 << 20;  // bytes; a larger dW does not stay in the caches for the optimizer

/// d (rows, cols) = h W[chunk]^T, with leading dimension ld.
template <class Isa>
void logits_of(Isa isa, Pool& pool, float* d, std::int64_t ld, const View& h, const View& w, VocabChunk c,
               const Numerics& numerics) {
  const gemm::Problem p{.m = h.rows(),
                        .n = c.cols,
                        .k = h.cols(),
                        .compute = gemm::compute_of(h.dtype()),
                        .a = {h.data(), h.dtype(), h.row_stride(), false},
                        .b = {rows_from(w, c.begin), w.dtype(), w.row_stride(), true},
                        .row_invariant = numerics.row_invariant};
  gemm::gemm(isa, pool, p, ep::Into<float>{.d = d, .ld = ld});
}

/// Statistics per row, over the chunks seen so far.
struct Stats {
  float *top, *sum, *at_target, *loss;
  Stats(const Tensor& t, std::int64_t rows)
      : top(t.ptr<float>()), sum(top + rows), at_target(sum + rows), loss(at_target + rows) {}
};

/// `copy`: destination of rounded logits, or null.
template <class Isa, class T>
void fold_chunk(Pool& pool, const Stats& s, const float* x, std::int64_t ld, T* copy, std::int64_t copy_ld,
                const std::int32_t* target, std::int64_t rows, VocabChunk c) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  for_rows(pool, rows, c.cols, [&](std::int64_t begin, std::int64_t end) {
    for (auto r = begin; r < end; ++r) {
      LogSumExp<Isa> l;
      if (c.begin) l.top = s.top[r], l.sum = s.sum[r];
      else s.at_target[r] = target[r] < 0 ? 0 : kNaN;
      l.add(x + r * ld, c.cols);
      if (copy)
        loop<Isa>(c.cols,
                  [&](std::int64_t i, auto k) { store(copy + r * copy_ld + i, load<V>(x + r * ld + i, k), k); });
      s.top[r] = l.top;
      s.sum[r] = l.sum;
      const auto t = target[r] - c.begin;
      if (target[r] >= 0 && t >= 0 && t < c.cols) s.at_target[r] = x[r * ld + t];
    }
  });
}

/// Per row; `rest` may be null.
struct Lse {
  const float *lse, *rest;
  Lse(const View& v, std::int64_t rows)
      : lse(v.ptr<float>()), rest(v.size() == 2 * rows ? v.ptr<float>() + rows : nullptr) {}
};

/// d = (exp((x - lse) - rest) - onehot(target)) * dloss, for one chunk; d may be x.
template <class Isa, class T>
void gradient_chunk(Pool& pool, float* d, std::int64_t d_ld, const T* x, std::int64_t ld, const std::int32_t* target,
                    const Lse& lse, float dloss, std::int64_t rows, VocabChunk c) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  for_rows(pool, rows, c.cols, [&](std::int64_t begin, std::int64_t end) {
    for (auto r = begin; r < end; ++r) {
      float* out = d + r * d_ld;
      const T* in = x + r * ld;
      if (target[r] < 0) {
        loop<Isa>(c.cols, [&](std::int64_t i, auto k) { store(out + i, V(0.0f), k); });
        continue;
      }
      const V shift(lse.lse[r]), rest(lse.rest ? lse.rest[r] : 0.0f), g(dloss);
      const auto t = target[r] - c.begin;
      const bool here = t >= 0 && t < c.cols;
      const auto p = [&](V v) { return LogSumExp<Isa>::power((v - shift) - rest); };
      const float of_target = here ? reduce_max(p(V(static_cast<float>(in[t])))) : 0;
      loop<Isa>(c.cols, [&](std::int64_t i, auto k) { store(out + i, p(load<V>(in + i, k)) * g, k); });
      if (here) out[t] = (of_target - 1.0f) * dloss;
    }
  });
}

/// dh (+)= sum, rounded once.
template <class Isa> void add_rows(Pool& pool, const Grad& dh, const float* sum) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  const auto n = dh.cols();
  visit_dtype(dh.dtype(), [&]<class T>() {
    for_rows(pool, dh.rows(), n, [&](std::int64_t begin, std::int64_t end) {
      for (auto r = begin; r < end; ++r) {
        T* out = dh.ptr<T>() + r * dh.row_stride();
        loop<Isa>(n, [&](std::int64_t i, auto k) {
          V v = load<V>(sum + r * n + i, k);
          if (dh.accumulate()) v = v + load<V>(out + i, k);
          store(out + i, v, k);
        });
      }
    });
  });
}

/// dW[chunk] (+)= d^T h and sum (+)= d W[chunk]. With f16 these products are f32: the probabilities in d are far below
/// its range.
template <class Isa>
void products(Isa isa, Pool& pool, const Grad& dw, float* sum, const View& h, const View& w, const float* d,
              std::int64_t ld, VocabChunk c, const Numerics& numerics) {
  const auto compute = h.dtype() == DType::bf16 ? gemm::Compute::bf16 : gemm::Compute::f32;
  const gemm::Operand here{h.data(), h.dtype(), h.row_stride(), false};
  if (sum) {
    const gemm::Problem p{.m = h.rows(),
                          .n = h.cols(),
                          .k = c.cols,
                          .compute = compute,
                          .a = {d, DType::f32, ld, false},
                          .b = {rows_from(w, c.begin), w.dtype(), w.row_stride(), false},
                          .row_invariant = numerics.row_invariant};
    gemm::gemm(isa, pool, p, ep::Into<float>{.d = sum, .ld = h.cols(), .accumulate = c.begin > 0});
  }
  if (!dw) return;
  const gemm::Problem p{
      .m = c.cols, .n = h.cols(), .k = h.rows(), .compute = compute, .a = {d, DType::f32, ld, true}, .b = here};
  visit_dtype(dw.dtype(), [&]<class T>() {
    gemm::gemm(isa, pool, p,
               ep::Into<T>{.d = dw.ptr<T>() + c.begin * dw.row_stride(),
                           .ld = dw.row_stride(),
                           .accumulate = dw.accumulate(),
                           .cold = dw.bytes() >= kCold});
  });
}

}  // namespace

template <class Isa>
void lm_head_loss(Isa isa, Pool& pool, Tensor loss, Tensor count, Tensor lse, Tensor logits, View h, View w,
                  View targets, Tensor chunk, Tensor stats, const Numerics& numerics) {
  const auto rows = h.rows(), vocab = w[0];
  const auto* target = targets.ptr<std::int32_t>();
  const Stats s(stats, rows);
  // Kept f32 logits serve as the chunk's memory; 16-bit ones are a copy, so that the loss is computed from unrounded
  // logits.
  const bool kept = logits && logits.size() > 0, in_place = kept && logits.dtype() == DType::f32;
  for_chunks(LmHeadLoss::chunk(rows, vocab, numerics), vocab, [&](VocabChunk c) {
    float* x = in_place ? logits.ptr<float>() + c.begin : chunk.ptr<float>();
    const auto ld = in_place ? vocab : chunk.cols();
    logits_of(isa, pool, x, ld, h, w, c, numerics);
    visit_dtype(kept ? logits.dtype() : DType::f32, [&]<class T>() {
      fold_chunk<Isa>(pool, s, x, ld, kept && !in_place ? logits.ptr<T>() + c.begin : nullptr, vocab, target, rows, c);
    });
  });
  for (std::int64_t r = 0; r < rows; ++r) {
    const LogSumExp<Isa> l{s.top[r], s.sum[r]};
    const float log_sum = l.log_sum();
    if (lse) lse.ptr<float>()[r] = l.top + log_sum, lse.ptr<float>()[rows + r] = lse_rest(l.top, log_sum);
    s.loss[r] = target[r] < 0 ? 0 : (l.top - s.at_target[r]) + log_sum;
  }
  cross_entropy_sum(isa, loss, count, View(s.loss, Spec{{rows}, DType::f32}), targets);
}

template <class Isa>
void lm_head_loss_backward(Isa isa, Pool& pool, Grad dh, Grad dw, View h, View w, View targets, View lse, View logits,
                           float dloss, Tensor chunk, Tensor sum, const Numerics& numerics) {
  const auto rows = h.rows(), vocab = w[0], ld = chunk.cols();
  const auto* target = targets.ptr<std::int32_t>();
  auto* d = chunk.ptr<float>();
  const Lse shifts(lse, rows);
  const bool kept = logits && logits.size() > 0;
  for_chunks(LmHeadLoss::chunk(rows, vocab, numerics), vocab, [&](VocabChunk c) {
    if (!kept) {
      logits_of(isa, pool, d, ld, h, w, c, numerics);
      gradient_chunk<Isa>(pool, d, ld, d, ld, target, shifts, dloss, rows, c);
    } else {
      visit_dtype(logits.dtype(), [&]<class T>() {
        gradient_chunk<Isa>(pool, d, ld, logits.ptr<T>() + c.begin, vocab, target, shifts, dloss, rows, c);
      });
    }
    products(isa, pool, dw, dh ? sum.ptr<float>() : nullptr, h, w, d, ld, c, numerics);
  });
  if (dh) add_rows<Isa>(pool, dh, sum.ptr<float>());
}

template void lm_head_loss(simd::Isa, Pool&, Tensor, Tensor, Tensor, Tensor, View, View, View, Tensor, Tensor,
                           const Numerics&);
template void lm_head_loss_backward(simd::Isa, Pool&, Grad, Grad, View, View, View, View, View, float, Tensor, Tensor,
                                    const Numerics&);

}  // namespace hpcdl::cpu
