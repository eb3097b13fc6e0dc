#include "hpcdl/ops/kv_write/pages.h"
#include "hpcdl/ops/sample/sample.h"

#include "hpcdl/cuda/overlap.cuh"
#include "hpcdl/ops/sample/row.cuh"
#include "hpcdl/rng.h"

namespace hpcdl::cuda {
namespace {

/// The sum of f(logit, id) over the row.
template <class F> __device__ Key sum(const Row& row, Shared& s, F f) {
  Key mine = 0;
  row.each([&](float v, int id) { mine += f(v, id); });
  mine = sum_of_warp(mine);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) s.warps[threadIdx.x / kWarp] = mine;
  __syncthreads();
  return sum_of_warp(s.warps[threadIdx.x % kWarp]);
}

/// The place, in the order of ids, at which the sum of f(logit, id) exceeds `target`, which is less than the whole sum.
template <class F> __device__ int place_of(const Row& row, Key target, Shared& s, F f) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp,
            part = (row.cols + kThreads - 1) / kThreads * kWarp, begin = warp * part,
            end = begin + part < row.cols ? begin + part : row.cols;
  const auto at = [&](int id) { return id < end ? f(row.logits[id], id) : Key{0}; };
  Key mine = 0;
  for (int id = begin + lane; id < end; id += kWarp) mine += at(id);
  mine = sum_of_warp(mine);
  __syncthreads();
  if (lane == 0) s.warps[warp] = mine;
  __syncthreads();
  const Key up_to = __shfl_sync(~0u, sum_up_to(s.warps[lane]), warp), before = up_to - mine;
  if (before <= target && target < up_to) {
    Key sum = before;
    for (int first = begin; first < end; first += kWarp) {
      const Key x = sum_up_to(at(first + lane));
      const unsigned over = __ballot_sync(~0u, sum + x > target);
      if (over) {
        if (lane == 0) s.id = first + __ffs(static_cast<int>(over)) - 1;
        break;
      }
      sum += __shfl_sync(~0u, x, kWarp - 1);
    }
  }
  __syncthreads();
  return s.id;
}

/// The order of typical_p. With x the depth (top - logit) / temperature of a token, -log(probability) less the entropy of
/// the tokens that are left is x less the mean of x by their weights. Its size is less than 64, because tokens have no
/// weight beyond 44 log(2).
struct Typical {
  double mean;

  template <class Left> __device__ Typical(const Row& row, Shared& s, Key all, Left left) {
    const Key depths = sum(row, s, [&](float v, int id) {
      return left(v, id) > 0 ? static_cast<Key>(row.share(v) * row.depth(v) * 0x1p44) : Key{0};
    });
    mean = static_cast<double>(depths) / static_cast<double>(all);
  }
  /// Tokens nearest to the entropy have the largest, and of equal ones the first.
  __device__ Key key(const Row& row, float v, int id) const {
    const double distance = ::fmin(::fabs(row.depth(v) - mean), 64.0);
    return static_cast<Key>((64 - distance) * static_cast<double>(Key{1} << (57 - row.id_bits))) << row.id_bits |
           row.id_key(id);
  }
  __device__ static Key highest(const Row& row) { return (Key{1} << 63) | row.id_key(0); }
};

/// What is at least this share of a sum, and not 0.
__device__ Key share_of(float share, Key all) {
  const auto enough = static_cast<Key>(ceil(static_cast<double>(share) * static_cast<double>(all)));
  return enough > 0 ? enough : 1;
}

__device__ int drawn(const Row& row, Key best, const SampleRule& rule, Shared& s) {
  const auto weight = [&](float v) { return Row::weight(row.share(v)); };
  const Key top = row.key(static_cast<float>(row.top), place_of_best(best));
  Key least = 0;  // the lowest key of the tokens that are left
  if (rule.top_k > 0 && rule.top_k < row.cols) least = lowest_of_first(row, top, rule.top_k, s);
  const auto left = [&](float v, int id) {
    if (row.key(v, id) < least) return Key{0};
    const double share = row.share(v);
    return rule.min_p > 0 && share < static_cast<double>(rule.min_p) ? Key{0} : Row::weight(share);
  };
  if (rule.top_p < 1) {
    const Key all = sum(row, s, [&](float v, int id) { return row.key(v, id) < least ? Key{0} : weight(v); });
    least = cut(row, least, top, share_of(rule.top_p, all), s, weight);
  }
  const Key all = sum(row, s, left);
  const auto bits = Rng{rule.seed, 0x5a}.block(rule.index);
  const auto part_of = [&](Key total) { return __umul64hi(static_cast<Key>(bits[0]) << 32 | bits[1], total); };
  if (rule.typical_p < 1) {
    const Typical typical(row, s, all, left);
    const auto key = [&](float v, int id) { return typical.key(row, v, id); };
    const Key last = cut(row, 0, typical.highest(row), share_of(rule.typical_p, all), s, key, left);
    const auto kept = [&](float v, int id) { return key(v, id) < last ? Key{0} : left(v, id); };
    const Key target = part_of(sum(row, s, kept));
    if (rule.top_p < 1) return row.id(cut(row, last, typical.highest(row), target + 1, s, key, kept));
    return place_of(row, target, s, kept);
  }
  const Key target = part_of(all);
  if (rule.top_p < 1) return row.id(cut(row, least, top, target + 1, s, weight));
  return place_of(row, target, s, left);
}

/// One block per row.
__global__ void __launch_bounds__(kThreads)
    sample_rows(std::int32_t* ids, const float* logits, std::int64_t stride, int cols, SampleRule* rules) {
  __shared__ Shared shared;
  let_next_begin();
  await_previous();
  Row row{logits + blockIdx.x * stride, cols, 32 - __clz((cols - 1) | 1), 0, 1};
  const Key best = best_of(row);
  const SampleRule rule = rules[blockIdx.x];
  int place = place_of_best(best);
  if (best == 0) place = kNoToken;
  else if (!has_largest(best)) place = -1 - place;
  else if (rule.temperature != 0) {
    row.top = row.logits[place], row.temperature = rule.temperature;
    place = drawn(row, best, rule, shared);
  }
  if (threadIdx.x != 0) return;
  ids[blockIdx.x] = place;
  rules[blockIdx.x].index = rule.index + 1;
}

struct Delivery {
  struct Places {
    std::int64_t* slots;
    const std::int32_t* pages;
  };
  std::int32_t* to;
  const std::int32_t* ids;
  std::int32_t *positions, *lengths;
  Places places[2];
  int groups, count, row;
};

/// A thread delivers the token of one sequence.
__global__ void __launch_bounds__(kThreads) deliver_ids(const __grid_constant__ Delivery d) {
  const int r = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (r >= d.count) return;
  d.to[r] = d.ids[r];
  if (d.places[0].slots[r] < 0) return;
  constexpr int kPage = static_cast<int>(kPageTokens);
  const int key = d.lengths[r]++, page = key / kPage;
  d.positions[r] += 1;
  for (int i = 0; i < d.groups; ++i) {
    const auto& [slots, pages] = d.places[i];
    slots[r] = page < d.row ? std::int64_t{pages[r * d.row + page]} * kPage + key % kPage : -1;
  }
}

}  // namespace

void deliver(Stream& s, std::int32_t* to, View ids, const NextTokens& next) {
  Delivery d{.to = to,
             .ids = ids.ptr<std::int32_t>(),
             .positions = next.positions.ptr<std::int32_t>(),
             .lengths = next.lengths.ptr<std::int32_t>(),
             .places = {},
             .groups = 0,
             .count = static_cast<int>(ids.size()),
             .row = static_cast<int>(next.places[0].pages[1])};
  for (const auto& [slots, pages] : next.places)
    if (slots) d.places[d.groups++] = {slots.ptr<std::int64_t>(), pages.ptr<std::int32_t>()};
  const unsigned threads = d.count < kThreads ? static_cast<unsigned>(d.count) : kThreads;
  deliver_ids<<<blocks_for(d.count, kThreads), threads, 0, queue(s)>>>(d);
  launched("sample");
}

void sample(Stream& s, Tensor ids, View logits, Tensor rules) {
  if (ids.size() == 0) return;
  launch_overlapped(queue(s), overlaps(s, logits.rows()), sample_rows,
                    {.grid = blocks_for(logits.rows(), 1), .block = kThreads}, "sample", ids.ptr<std::int32_t>(),
                    logits.ptr<float>(), logits.row_stride(), static_cast<int>(logits.cols()),
                    reinterpret_cast<SampleRule*>(rules.ptr<std::int32_t>()));
}

}  // namespace hpcdl::cuda
