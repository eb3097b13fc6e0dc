#include "hpcdl/cuda/lanes.cuh"
#include "hpcdl/cuda/launch.h"
#include "hpcdl/ops/cross_entropy/far_lse.h"
#include "hpcdl/ops/vocabulary/vocabulary.h"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 256;

struct Rows {
  const void *table, *positions;
  const std::int32_t *ids, *places;  // places may be null
  std::int64_t begin, count, per, position_rows, cols;
};

/// A block writes the row of one token.
template <class Y, class T, class P> __global__ void __launch_bounds__(kThreads) embed(Y* y, Rows r) {
  const std::int64_t token = blockIdx.x, row = r.ids[token] - r.begin, p = r.places ? r.places[token] : token % r.per;
  const T* from = row >= 0 && row < r.count ? static_cast<const T*>(r.table) + row * r.cols : nullptr;
  const P* add =
      r.positions && p >= 0 && p < r.position_rows ? static_cast<const P*>(r.positions) + p * r.cols : nullptr;
  const bool beyond = r.positions && !add;
  constexpr int N = 4;
  for (std::int64_t at = std::int64_t{threadIdx.x} * N; at < r.cols; at += kThreads * N) {
    const int n = static_cast<int>(r.cols - at < N ? r.cols - at : N);
    Lanes<N> v(beyond ? __builtin_nanf("") : 0.0f);
    if (from && !beyond) v = v + load<N>(from + at, n);
    if (add) v = v + load<N>(add + at, n);
    store(y + token * r.cols + at, v, n);
  }
}

__device__ std::int64_t element() { return std::int64_t{blockIdx.x} * kThreads + threadIdx.x; }

__global__ void __launch_bounds__(kThreads)
    shift(std::int32_t* here, const std::int32_t* ids, std::int64_t size, Columns c, std::int32_t elsewhere) {
  const auto i = element();
  if (i >= size) return;
  const std::int64_t id = ids[i], at = id - c.begin;
  here[i] = id < 0 ? -1 : at >= 0 && at < c.count ? static_cast<std::int32_t>(at) : elsewhere;
}

__global__ void __launch_bounds__(kThreads) addends(float* out, const float* tops, const float* stats,
                                                    const std::int32_t* targets, std::int64_t rows, Columns c) {
  const auto r = element();
  if (r >= rows) return;
  const float top = stats[r], all = tops[r];
  const std::int64_t t = targets[r], at = t - c.begin;
  out[r] = stats[rows + r] * (top == all ? 1.0f : expf(top - all));
  out[rows + r] = t >= c.vocab || (at >= 0 && at < c.count) ? stats[2 * rows + r] : 0.0f;
}

__global__ void __launch_bounds__(kThreads) finish(float* row_loss, float* lse, const float* tops, const float* sums,
                                                   const std::int32_t* targets, std::int64_t rows) {
  const auto r = element();
  if (r >= rows) return;
  const float log_sum = logf(sums[r]);
  if (lse) lse[r] = tops[r] + log_sum, lse[rows + r] = lse_rest(tops[r], log_sum);
  row_loss[r] = targets[r] < 0 ? 0.0f : (tops[r] - sums[rows + r]) + log_sum;
}

}  // namespace

void vocabulary_embedding(Stream& s, Tensor y, View table, View ids, View positions, View places, std::int64_t begin) {
  if (y.size() == 0) return;
  const Rows r{table.data(),
               positions ? positions.data() : nullptr,
               ids.ptr<std::int32_t>(),
               places ? places.ptr<std::int32_t>() : nullptr,
               begin,
               table[0],
               ids[-1],
               positions ? positions[0] : 0,
               y.cols()};
  visit_dtype(y.dtype(), [&]<class Y>() {
    visit_dtype(table.dtype(), [&]<class T>() {
      visit_dtype(positions ? positions.dtype() : DType::f32, [&]<class P>() {
        embed<Y, T, P><<<blocks_for(y.rows(), 1), kThreads, 0, queue(s)>>>(y.ptr<Y>(), r);
      });
    });
  });
  launched("vocabulary_embedding");
}

void local_ids(Stream& s, Tensor here, View ids, Columns c, std::int32_t elsewhere) {
  if (ids.size() == 0) return;
  shift<<<blocks_for(ids.size(), kThreads), kThreads, 0, queue(s)>>>(here.ptr<std::int32_t>(), ids.ptr<std::int32_t>(),
                                                                     ids.size(), c, elsewhere);
  launched("local_ids");
}

void loss_addends(Stream& s, Tensor sums, View tops, View stats, View targets, Columns c) {
  if (targets.size() == 0) return;
  addends<<<blocks_for(targets.size(), kThreads), kThreads, 0, queue(s)>>>(
      sums.ptr<float>(), tops.ptr<float>(), stats.ptr<float>(), targets.ptr<std::int32_t>(), targets.size(), c);
  launched("vocabulary_loss");
}

void loss_of_rows(Stream& s, Tensor row_loss, Tensor lse, View tops, View sums, View targets) {
  const auto rows = targets.size();
  if (rows == 0) return;
  finish<<<blocks_for(rows, kThreads), kThreads, 0, queue(s)>>>(row_loss.ptr<float>(), lse ? lse.ptr<float>() : nullptr,
                                                                tops.ptr<float>(), sums.ptr<float>(),
                                                                targets.ptr<std::int32_t>(), rows);
  launched("vocabulary_loss");
}

}  // namespace hpcdl::cuda
