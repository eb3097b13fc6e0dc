#include "hpcdl/cuda/reduce.cuh"
#include "hpcdl/ops/attention/far_rows.cuh"

// Plain tiles in float for any head size, stride and mix of types: 32 queries and 32 keys in shared memory, four
// threads per row. Nothing is added atomically: queries' gradients are summed by blocks that own queries, keys' and
// values' by blocks that own keys, so results are reproducible bit for bit.

namespace hpcdl::cuda {
namespace {

constexpr int kRows = 32, kShare = 4, kThreads = kRows * kShare, kEach = kRows / kShare;
constexpr float kInf = __builtin_inff();
/// Blocks of backward that fit the shared memory of a multiprocessor.
template <int kMaxWidth> constexpr int kBlocks = kMaxWidth > 128 ? 1 : kMaxWidth > 64 ? 3 : 4;

/// Loads rows [t0, t0 + 32) of one head into shared memory, with zeros from `end` on. Row stride: `ld` floats.
__device__ void bring(float* tile, int ld, const auto& x, std::int64_t b, std::int64_t t0, std::int64_t end,
                      std::int64_t h, int width) {
  for (int i = static_cast<int>(threadIdx.x); i < kRows * width; i += kThreads) {
    const int r = i / width, d = i % width;
    tile[r * ld + d] = t0 + r < end ? value_of(x, b, t0 + r, h, d) : 0.0f;
  }
}

__device__ float share_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}
__device__ float share_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

/// dot[i] = row . other[share + 4 i]
__device__ void dots(float (&dot)[kEach], const float* row, const float* other, int ld, int width, int share) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) dot[i] = 0;
  for (int d = 0; d < width; ++d) {
    const float x = row[d];
#pragma unroll
    for (int i = 0; i < kEach; ++i) dot[i] = ::fmaf(x, other[(share + kShare * i) * ld + d], dot[i]);
  }
}
/// acc[i] += sum over j of weight[j] * rows[j][share + 4 i]
template <int kMaxWidth>
__device__ void add_rows(float (&acc)[kMaxWidth / kShare], const float* weight, const float* rows, int ld, int width,
                         int share) {
  for (int j = 0; j < kRows; ++j) {
    const float w = weight[j];
#pragma unroll
    for (int i = 0; i < kMaxWidth / kShare; ++i)
      if (share + kShare * i < width) acc[i] = ::fmaf(w, rows[j * ld + share + kShare * i], acc[i]);
  }
}

/// Block (query tile, head, sequence).
template <int kMaxWidth, class Problem>
__global__ void __launch_bounds__(kThreads) attend(const __grid_constant__ Problem p) {
  extern __shared__ float memory[];
  const int ld = p.width | 1, row = static_cast<int>(threadIdx.x) / kShare,
            share = static_cast<int>(threadIdx.x) % kShare;
  float *qs = memory, *ks = qs + kRows * ld, *vs = ks + kRows * ld, *ps = vs + kRows * ld;
  const std::int64_t t0 = std::int64_t{blockIdx.x} * kRows, t = t0 + row, h = blockIdx.y, b = blockIdx.z,
                     kv = h / p.group();
  const std::int64_t queries = p.count(b), first = p.first_row(b);
  if (t0 >= queries) return;  // other sequences have more
  const std::int64_t seen = t < queries ? p.seen(b, t) : 0, last = t0 + kRows < queries ? t0 + kRows : queries,
                     end = p.seen(b, last - 1), hidden = p.first_of(b, seen);
  bring(qs, ld, p.q, b, first + t0, first + queries, h, p.width);
  float top = -kInf, sum = 0, acc[kMaxWidth / kShare] = {};
  for (std::int64_t k0 = p.first_of(b, p.seen(b, t0)) / kRows * kRows; k0 < end; k0 += kRows) {
    __syncthreads();
    bring(ks, ld, p.k, b, k0, end, kv, p.width);
    bring(vs, ld, p.v, b, k0, end, kv, p.width);
    __syncthreads();
    float s[kEach];
    dots(s, qs + row * ld, ks, ld, p.width, share);
    float here = -kInf;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::int64_t key = k0 + share + kShare * i;
      // Rounded in the same way as `here`.
      s[i] = key < seen && key >= hidden ? __fmul_rn(p.capped(s[i]), p.scale) : -kInf;
      here = fmaxf(here, s[i]);
    }
    here = fmaxf(top, share_max(here));
    const float shrink = here == -kInf ? 1.0f : expf(top - here);
    float part = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const float e = s[i] == -kInf ? 0.0f : expf(s[i] - here);
      part += e;
      ps[row * (kRows + 1) + share + kShare * i] = e;
    }
    __syncwarp();
    sum = sum * shrink + share_sum(part);
    top = here;
#pragma unroll
    for (int i = 0; i < kMaxWidth / kShare; ++i) acc[i] *= shrink;
    add_rows<kMaxWidth>(acc, ps + row * (kRows + 1), vs, ld, p.width, share);
    __syncwarp();
  }
  if (t >= queries) return;
#pragma unroll
  for (int i = 0; i < kMaxWidth / kShare; ++i)
    if (share + kShare * i < p.width) p.out.put(p.out.at(b, first + t, h) + share + kShare * i, acc[i] / sum);
  if (p.lse && share == 0) p.lse[(b * p.heads + h) * p.queries + t] = top + logf(sum);
}

/// One query per sequence and head: warps divide the keys, lanes the elements of a head.
__global__ void __launch_bounds__(256) attend_one(const __grid_constant__ AttentionProblem p) {
  constexpr int kWarps = 8, kMax = static_cast<int>(Attention::kMaxHeadDim) / kWarp;
  __shared__ float tops[kWarps], sums[kWarps], parts[kWarps][Attention::kMaxHeadDim];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t h = blockIdx.x, b = blockIdx.y, kv = h / p.group(), keys = p.capacity, q0 = p.q.at(b, 0, h);
  float q[kMax], acc[kMax] = {}, top = -kInf, sum = 0;
#pragma unroll
  for (int i = 0; i < kMax; ++i) q[i] = lane + kWarp * i < p.width ? p.q.get(q0 + lane + kWarp * i) : 0.0f;
  for (std::int64_t key = p.first_of(keys) + warp; key < keys; key += kWarps) {
    const std::int64_t k0 = p.k.at(b, key, kv), v0 = p.v.at(b, key, kv);
    float dot = 0;
#pragma unroll
    for (int i = 0; i < kMax; ++i)
      if (lane + kWarp * i < p.width) dot = ::fmaf(q[i], p.k.get(k0 + lane + kWarp * i), dot);
    const float s = __fmul_rn(p.capped(warp_reduce(dot, Sum{})), p.scale),  // rounded in the same way as `here`
        here = fmaxf(top, s), shrink = expf(top - here), e = expf(s - here);
    sum = sum * shrink + e;
    top = here;
#pragma unroll
    for (int i = 0; i < kMax; ++i)
      if (lane + kWarp * i < p.width) acc[i] = ::fmaf(e, p.v.get(v0 + lane + kWarp * i), acc[i] * shrink);
  }
  if (lane == 0) tops[warp] = top, sums[warp] = sum;
#pragma unroll
  for (int i = 0; i < kMax; ++i) parts[warp][lane + kWarp * i] = acc[i];
  __syncthreads();
  float all = -kInf, total = 0;
  for (int w = 0; w < kWarps; ++w) all = fmaxf(all, tops[w]);
  for (int w = 0; w < kWarps; ++w) total += tops[w] == -kInf ? 0.0f : sums[w] * expf(tops[w] - all);
  for (int d = static_cast<int>(threadIdx.x); d < p.width; d += 256) {
    float v = 0;
    for (int w = 0; w < kWarps; ++w) v += tops[w] == -kInf ? 0.0f : parts[w][d] * expf(tops[w] - all);
    p.out.put(p.out.at(b, 0, h) + d, v / total);
  }
  if (p.lse && threadIdx.x == 0) p.lse[b * p.heads + h] = all + logf(total);
}

/// sum(do out) of the rows of a tile, one row per four threads.
__device__ float row_delta(const AttentionProblem& p, const float* douts, int ld, int row, std::int64_t b,
                           std::int64_t t, std::int64_t h, int share) {
  float delta = 0;
  if (t < p.queries)
    for (int d = share; d < p.width; d += kShare)
      delta = ::fmaf(douts[row * ld + d], p.out.get(p.out.at(b, t, h) + d), delta);
  return share_sum(delta);
}

template <class Base> struct PlainBackward : Base {
  RowStatistics rows;
  bool only_far = false;  // add only the contribution of far rows, if there are any

  __device__ bool nothing_to_do() const { return only_far && *rows.any_far == 0; }
  __device__ std::int64_t row(std::int64_t b, std::int64_t h, std::int64_t t) const {
    return (b * this->heads + h) * this->queries + t;
  }
  /// For a row that exists.
  __device__ float top(std::int64_t row) const { return rows.tops[row]; }
  __device__ float log_sum(std::int64_t row) const {
    return rows.tops[row] == 0 ? this->lse[row] : rows.logs[row] * 0.6931471805599453f;
  }
  __device__ bool takes(float top) const { return !only_far || top != 0; }
};

/// body(tile, head, sequence) for each of tiles x heads x batch, divided among the blocks.
template <class F> __device__ void for_each_tile(std::int64_t tiles, std::int64_t heads, std::int64_t batch, F&& body) {
  for (std::int64_t i = blockIdx.x; i < tiles * heads * batch; i += gridDim.x)
    body(i % tiles, i / tiles % heads, i / tiles / heads);
}

/// One tile of queries.
template <int kMaxWidth, class Problem>
__device__ void query_gradient(const Problem& p, std::int64_t tile, std::int64_t h, std::int64_t b) {
  extern __shared__ float memory[];
  const int ld = p.width | 1, row = static_cast<int>(threadIdx.x) / kShare,
            share = static_cast<int>(threadIdx.x) % kShare;
  float *qs = memory, *ds = qs + kRows * ld, *ks = ds + kRows * ld, *vs = ks + kRows * ld, *weights = vs + kRows * ld;
  const std::int64_t t0 = tile * kRows, t = t0 + row, kv = h / p.group();
  const std::int64_t seen = t < p.queries ? p.seen(t) : 0, last = t0 + kRows < p.queries ? t0 + kRows : p.queries,
                     end = p.seen(last - 1), hidden = p.first_of(b, seen);
  const float top = t < p.queries ? p.top(p.row(b, h, t)) : 0.0f,
              lse = t < p.queries ? p.log_sum(p.row(b, h, t)) : 0.0f;
  if (!__syncthreads_or(p.takes(top))) return;
  bring(qs, ld, p.q, b, t0, p.queries, h, p.width);
  bring(ds, ld, p.dout, b, t0, p.queries, h, p.width);
  __syncthreads();
  const float delta = row_delta(p, ds, ld, row, b, t, h, share);
  float acc[kMaxWidth / kShare] = {};
  for (std::int64_t k0 = p.first_of(b, p.seen(t0)) / kRows * kRows; k0 < end; k0 += kRows) {
    __syncthreads();
    bring(ks, ld, p.k, b, k0, end, kv, p.width);
    bring(vs, ld, p.v, b, k0, end, kv, p.width);
    __syncthreads();
    float s[kEach], dp[kEach];
    dots(s, qs + row * ld, ks, ld, p.width, share);
    dots(dp, ds + row * ld, vs, ld, p.width, share);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::int64_t key = k0 + share + kShare * i;
      const float score = p.capped(s[i]);
      weights[row * (kRows + 1) + share + kShare * i] =
          key < seen && key >= hidden
              ? expf(below_top(score, top) * p.scale - lse) * (dp[i] - delta) * p.scale * p.slope(score)
              : 0.0f;
    }
    __syncwarp();
    add_rows<kMaxWidth>(acc, weights + row * (kRows + 1), ks, ld, p.width, share);
    __syncwarp();
  }
  if (t >= p.queries || !p.takes(top)) return;
#pragma unroll
  for (int i = 0; i < kMaxWidth / kShare; ++i)
    if (share + kShare * i < p.width) p.dq.put(p.dq.at(b, t, h) + share + kShare * i, acc[i]);
}

template <int kMaxWidth, class Problem>
__global__ void __launch_bounds__(kThreads, kBlocks<kMaxWidth>) query_gradients(const __grid_constant__ Problem p) {
  if (p.nothing_to_do()) return;
  for_each_tile((p.queries + kRows - 1) / kRows, p.heads, p.batch,
                [&](std::int64_t tile, std::int64_t h, std::int64_t b) {
                  query_gradient<kMaxWidth>(p, tile, h, b);
                  __syncthreads();
                });
}

/// One tile of keys; iterates over the query heads of the group.
template <int kMaxWidth, class Problem>
__device__ void key_gradient(const Problem& p, std::int64_t tile, std::int64_t kv, std::int64_t b) {
  extern __shared__ float memory[];
  __shared__ float lses[kRows], tops[kRows], deltas[kRows];
  const int ld = p.width | 1, row = static_cast<int>(threadIdx.x) / kShare,
            share = static_cast<int>(threadIdx.x) % kShare;
  float *ks = memory, *vs = ks + kRows * ld, *qs = vs + kRows * ld, *ds = qs + kRows * ld, *probs = ds + kRows * ld,
        *weights = probs + kRows * (kRows + 1);
  const std::int64_t k0 = tile * kRows, key = k0 + row;
  bring(ks, ld, p.k, b, k0, p.capacity, kv, p.width);
  bring(vs, ld, p.v, b, k0, p.capacity, kv, p.width);
  float dk[kMaxWidth / kShare] = {}, dv[kMaxWidth / kShare] = {};
  const std::int64_t first = p.causal && k0 > p.position() ? (k0 - p.position()) / kRows * kRows
                                                           : 0;  // earlier queries see none of these keys
  const std::int64_t after = p.last_query(b, k0 + kRows - 1) + 1, last = p.last_query(b, key);
  for (std::int64_t h = kv * p.group(); h < (kv + 1) * p.group(); ++h)
    for (std::int64_t t0 = first; t0 < after; t0 += kRows) {
      const bool there = t0 + row < p.queries;
      const float top = there ? p.top(p.row(b, h, t0 + row)) : 0.0f;
      if (!__syncthreads_or(p.takes(top))) continue;
      bring(qs, ld, p.q, b, t0, p.queries, h, p.width);
      bring(ds, ld, p.dout, b, t0, p.queries, h, p.width);
      __syncthreads();
      const float delta = row_delta(p, ds, ld, row, b, t0 + row, h, share);
      if (share == 0) {
        deltas[row] = delta, tops[row] = top;
        lses[row] = there ? p.log_sum(p.row(b, h, t0 + row)) : 0.0f;
      }
      __syncthreads();
      float s[kEach], dp[kEach];
      dots(s, ks + row * ld, qs, ld, p.width, share);
      dots(dp, vs + row * ld, ds, ld, p.width, share);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int j = share + kShare * i;
        const bool sees = t0 + j < p.queries && key < p.seen(t0 + j) && t0 + j <= last && p.takes(tops[j]);
        const float score = p.capped(s[i]), e = sees ? expf(below_top(score, tops[j]) * p.scale - lses[j]) : 0.0f;
        probs[row * (kRows + 1) + j] = e;
        weights[row * (kRows + 1) + j] = sees ? e * (dp[i] - deltas[j]) * p.scale * p.slope(score) : 0.0f;
      }
      __syncwarp();
      add_rows<kMaxWidth>(dv, probs + row * (kRows + 1), ds, ld, p.width, share);
      add_rows<kMaxWidth>(dk, weights + row * (kRows + 1), qs, ld, p.width, share);
      __syncwarp();
    }
  if (key >= p.capacity) return;
#pragma unroll
  for (int i = 0; i < kMaxWidth / kShare; ++i) {
    if (share + kShare * i >= p.width) break;
    if (p.dk.data) p.dk.put(p.dk.at(b, key, kv) + share + kShare * i, dk[i]);
    if (p.dv.data) p.dv.put(p.dv.at(b, key, kv) + share + kShare * i, dv[i]);
  }
}

template <int kMaxWidth, class Problem>
__global__ void __launch_bounds__(kThreads, kBlocks<kMaxWidth>) key_gradients(const __grid_constant__ Problem p) {
  if (p.nothing_to_do()) return;
  for_each_tile((p.capacity + kRows - 1) / kRows, p.kv_heads, p.batch,
                [&](std::int64_t tile, std::int64_t kv, std::int64_t b) {
                  key_gradient<kMaxWidth>(p, tile, kv, b);
                  __syncthreads();
                });
}

/// f.template operator()<widest head>()
template <class F> void with_width(int width, F&& f) {
  if (width <= 64) f.template operator()<64>();
  else if (width <= 128) f.template operator()<128>();
  else f.template operator()<256>();
}

template <class Problem>
void start(Stream& s, void (*kernel)(Problem), dim3 grid, int tiles, int squares, const Problem& p, const char* name) {
  const int bytes = (tiles * kRows * (p.width | 1) + squares * kRows * (kRows + 1)) * 4;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), name);
  kernel<<<grid, kThreads, static_cast<std::size_t>(bytes), queue(s)>>>(p);
  launched(name);
}

}  // namespace

void attend_plain(Stream& s, const Attend& c) {
  const auto p = problem_of(c);
  const auto batch = static_cast<unsigned>(c.q[0]), heads = static_cast<unsigned>(c.args.heads);
  if (p.queries == 1) {
    attend_one<<<dim3(heads, batch), 256, 0, queue(s)>>>(p);
    return launched("attention");
  }
  with_width(p.width, [&]<int kWidth>() {
    with_documents(c, p, [&]<class Problem>(const Problem& of) {
      start(s, attend<kWidth, Problem>, dim3(blocks_for(p.queries, kRows), heads, batch), 3, 1, of, "attention");
    });
  });
}

void attend_plain(Stream& s, const PagedAttend& c) {
  using Problem = InPages<AttentionProblem>;
  const Problem p(problem_of(c.packed()), c);
  const dim3 grid(blocks_for(c.most_queries(), kRows), static_cast<unsigned>(p.heads), static_cast<unsigned>(p.batch));
  with_width(p.width, [&]<int kWidth>() { start(s, attend<kWidth, Problem>, grid, 3, 1, p, "paged_attention"); });
}

void attend_plain(Stream& s, const PackedAttend& c) {
  using Problem = InRows<AttentionProblem>;
  const Problem p(problem_of(c.whole()), c);
  const dim3 grid(blocks_for(c.longest(), kRows), static_cast<unsigned>(p.heads), static_cast<unsigned>(p.batch));
  with_width(p.width, [&]<int kWidth>() { start(s, attend<kWidth, Problem>, grid, 3, 1, p, "packed_attention"); });
}

namespace {

template <class Problem> void start_backward(Stream& s, const AttendBackward& c, const Problem& p) {
  const auto blocks = [&](std::int64_t tokens, int heads) {
    const std::int64_t all = (tokens + kRows - 1) / kRows * heads * p.batch;
    return dim3(blocks_for(p.only_far ? std::min<std::int64_t>(all, multiprocessors(s)) : all, 1));
  };
  with_width(p.width, [&]<int kWidth>() {
    if (c.dq) start(s, query_gradients<kWidth, Problem>, blocks(p.queries, p.heads), 4, 1, p, "attention_backward");
    if (c.dk || c.dv)
      start(s, key_gradients<kWidth, Problem>, blocks(p.capacity, p.kv_heads), 4, 2, p, "attention_backward");
  });
}

}  // namespace

void attend_backward_plain(Stream& s, const AttendBackward& c) {
  with_statistics(s, c, false, [&](const AttendBackward& part, const RowStatistics& rows) {
    with_documents(part, problem_of(part),
                   [&]<class Base>(const Base& p) { start_backward(s, part, PlainBackward<Base>{p, rows}); });
  });
}

void add_far_gradients(Stream& s, const AttendBackward& c, const RowStatistics& rows) {
  PlainBackward<AttentionProblem> p{problem_of(c), rows, true};
  p.dq.accumulate = p.dk.accumulate = p.dv.accumulate = true;
  start_backward(s, c, p);
}

}  // namespace hpcdl::cuda
