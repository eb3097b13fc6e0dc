#pragma once
// The passes of batch normalisation over a tensor of (rows, C). They are separate, because a collective
// (ops/sync_batch_norm) or running statistics may come between them.

#include "hpcdl/op.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

/// Sums are taken over at most 64 shares of the rows; the shares do not depend on the number of threads.
[[gnu::always_inline]] inline std::int64_t batch_share_rows(std::int64_t rows) {
  const std::int64_t even = (rows + 63) / 64;
  return even < 64 ? 64 : (even + 3) / 4 * 4;
}
[[gnu::always_inline]] inline std::int64_t batch_shares(std::int64_t rows) {
  const auto per = batch_share_rows(rows);
  return (rows + per - 1) / per;
}

/// How a GPU's blocks of 256 threads cover the rows and their packs of channels: determined by the shape alone, so that
/// results do not depend on the GPU. Packs have four elements for every type: packs of eight leave no registers for
/// rows in flight.
struct BatchGrid {
  int threads = 1;           // adjacent threads on a row; the others of the block take further rows
  std::int64_t columns = 0;  // blocks side by side
  std::int64_t parts = 0;    // shares of the rows
};
inline constexpr std::int64_t kMostBatchParts = 396, kBatchPack = 4;
inline BatchGrid batch_grid(const Spec& x) {
  const std::int64_t packs = (x[-1] + kBatchPack - 1) / kBatchPack, rows = x.shape.size() / x[-1];
  BatchGrid g;
  while (g.threads < packs && g.threads < 32) g.threads *= 2;
  g.columns = (packs + g.threads - 1) / g.threads;
  const std::int64_t per = 256 / g.threads * 4, useful = (rows + per - 1) / per,
                     full = kMostBatchParts / g.columns > 0 ? kMostBatchParts / g.columns : 1;
  g.parts = useful < full ? useful : full;
  return g;
}

/// y = relu?((x - mean) * weight / sqrt(var + eps) + bias + residual). Defaults when absent: residual 0, weight 1, bias
/// 0.
struct BatchNormForward {
  Tensor y = {};
  View x = {}, residual = {}, weight = {}, bias = {}, mean = {}, var = {};
  float eps = 0;
  bool relu = false;
};

/// With dz = dy where y > 0 (everywhere without relu) and n = (x - mean) / sqrt(var + eps):
///   dresidual = dz,  dbias = sum(dz),  dweight = sum(dz * n),
///   dx = weight / sqrt(var + eps) * (dz - (sum(dz) + n * sum(dz * n)) / count)
/// The signs come from y if it is given (a residual was added), else from x.
struct BatchNormBackward {
  Grad dx = {}, dresidual = {}, dweight = {}, dbias = {};
  View x = {}, y = {}, weight = {}, bias = {}, mean = {}, var = {}, dy = {};
  Tensor sums =
      {};  // (2, C) f32: sum(dz), sum(dz * n); (3, C) with the count as a third row if it is only known in memory
  Tensor partial = {};  // batch_partial(x)
  float eps = 0;
  bool relu = false;
  /// True if the first pass stores dz in dresidual and the second reads it there instead of dy and y.
  [[gnu::always_inline]] bool keeps_dz() const { return dresidual && !dresidual.accumulate(); }
};

/// Working memory of the sums over rows.
inline Spec batch_partial(const Spec& x) {
  const std::int64_t shares = batch_shares(x.shape.size() / x[-1]), parts = batch_grid(x).parts;
  return {{shares > parts ? shares : parts, 3, x[-1]}, DType::f32};
}

namespace cpu {
/// mean, var (divided by the rows), unbiased (by rows - 1; may be absent): (C) f32.
template <class Isa>
void batch_statistics(Isa, Pool&, Tensor mean, Tensor var, Tensor unbiased, View x, Tensor partial);
template <class Isa> void batch_normalise(Isa, Pool&, const BatchNormForward&);
/// sums, dweight, dbias, and dresidual where keeps_dz().
template <class Isa> void batch_norm_sums(Isa, Pool&, const BatchNormBackward&);
/// dx and dresidual. `sums` were taken over `count` rows: infinite if mean and var are constants, 0 if the count is in
/// sums[2].
template <class Isa> void batch_norm_gradient(Isa, Pool&, const BatchNormBackward&, float count);
/// Combines the statistics of several parts (parts, 3, C) f32 (mean, var, count), merged in order.
template <class Isa> void merge_statistics(Isa, Tensor mean, Tensor var, Tensor unbiased, View parts);
/// to = (1 - momentum) * to + momentum * batch
template <class Isa>
void running_statistics(Isa, Tensor mean, Tensor var, View batch_mean, View batch_var, float momentum);
}  // namespace cpu
namespace cuda {
void batch_statistics(Stream&, Tensor mean, Tensor var, Tensor unbiased, View x, Tensor partial);
void batch_normalise(Stream&, const BatchNormForward&);
void batch_norm_sums(Stream&, const BatchNormBackward&);
void batch_norm_gradient(Stream&, const BatchNormBackward&, float count);
void merge_statistics(Stream&, Tensor mean, Tensor var, Tensor unbiased, View parts);
void running_statistics(Stream&, Tensor mean, Tensor var, View batch_mean, View batch_var, float momentum);
}  // namespace cuda

inline void batch_statistics(Stream& s, Tensor mean, Tensor var, Tensor unbiased, View x, Tensor partial) {
  on(
      s, [&](auto isa, Pool& pool) { cpu::batch_statistics(isa, pool, mean, var, unbiased, x, partial); },
      [&](auto& q) { cuda::batch_statistics(q, mean, var, unbiased, x, partial); });
}
inline void merge_statistics(Stream& s, Tensor mean, Tensor var, Tensor unbiased, View parts) {
  on(
      s, [&](auto isa, Pool&) { cpu::merge_statistics(isa, mean, var, unbiased, parts); },
      [&](auto& q) { cuda::merge_statistics(q, mean, var, unbiased, parts); });
}
inline void batch_normalise(Stream& s, const BatchNormForward& o) {
  on(
      s, [&](auto isa, Pool& pool) { cpu::batch_normalise(isa, pool, o); },
      [&](auto& q) { cuda::batch_normalise(q, o); });
}
inline void batch_norm_sums(Stream& s, const BatchNormBackward& o) {
  on(
      s, [&](auto isa, Pool& pool) { cpu::batch_norm_sums(isa, pool, o); },
      [&](auto& q) { cuda::batch_norm_sums(q, o); });
}
inline void batch_norm_gradient(Stream& s, const BatchNormBackward& o, float count) {
  on(
      s, [&](auto isa, Pool& pool) { cpu::batch_norm_gradient(isa, pool, o, count); },
      [&](auto& q) { cuda::batch_norm_gradient(q, o, count); });
}

}  // namespace hpcdl
