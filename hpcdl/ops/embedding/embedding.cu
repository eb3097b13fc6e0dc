#include "hpcdl/ops/embedding/embedding.h"

#include "hpcdl/cuda/element.cuh"
#include "hpcdl/cuda/launch.h"
#include "hpcdl/cuda/whole_packs.cuh"

namespace hpcdl::cuda {
namespace {

struct Lookup {
  void* y;
  const void* table;
  Parameter positions;
  const std::int32_t *ids, *places;  // places may be null
  std::int64_t tokens, cols, per, vocab, positions_known, y_stride, table_stride, position_stride;
};

/// A warp writes one token's row, with four accesses per lane at a time. kPlaces: adds a row of positions; testing for
/// that at run time cost rows without positions a fifth of their rate.
template <class Y, class T, bool kPlaces, bool kWhole>
__global__ void __launch_bounds__(256, kWhole ? 4 : 1) lookup(Lookup l) {
  constexpr int N = kLanes<Y>, K = 4;
  const std::int64_t t = std::int64_t{blockIdx.x} * 8 + threadIdx.x / kWarp;
  if (t >= l.tokens) return;
  const std::int64_t id = l.ids[t], place = !kPlaces ? 0 : l.places ? l.places[t] : t % l.per;
  const bool known = id >= 0 && id < l.vocab && (!kPlaces || (place >= 0 && place < l.positions_known));
  const T* row = static_cast<const T*>(l.table) + id * l.table_stride;
  Y* y = static_cast<Y*>(l.y) + t * l.y_stride;
  const int cols = static_cast<int>(l.cols);
  for (int at = static_cast<int>(threadIdx.x) % kWarp * N; at < cols; at += kWarp * N * K) {
    Pack<T, N> value[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int col = at + k * kWarp * N;
      if constexpr (!kWhole) value[k] = read<N>(row + col, 0, known ? cols - col : 0, T{});
      else if (known && col < cols) value[k] = read_aligned<N>(row + col);
    }
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int col = at + k * kWarp * N;
      if (col >= cols) break;
      auto v = known ? widen(value[k]) : Lanes<N>(__builtin_nanf(""));
      if (kPlaces && known) v = v + l.positions.load<N, kWhole>(place * l.position_stride + col, 0, cols - col);
      if constexpr (kWhole) write_aligned(y + col, pack<Y>(v));
      else store(y + col, v, cols - col);
    }
  }
}

// The counting sort of tokens by id, in steps that give the CPU's order regardless of scheduling: count the tokens of
// each id and give each token a provisional place among them; compute where each id's tokens begin; store the tokens at
// their places; sort each id's tokens in ascending order.

constexpr int kThreads = 256, kScan = 1024;

__global__ void __launch_bounds__(kThreads)
    count_ids(std::int32_t* starts, std::int32_t* ranks, const std::int32_t* ids, std::int64_t tokens,
              std::int64_t vocab) {
  const std::int64_t t = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int32_t id = t < tokens ? ids[t] : -1;
  const bool known = id >= 0 && id < vocab;
  const unsigned same = __match_any_sync(~0u, known ? id : -1);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, leader = __ffs(static_cast<int>(same)) - 1;
  std::int32_t first = 0;
  if (known && lane == leader) first = atomicAdd(starts + id + 1, __popc(same));  // integers: the order does not matter
  first = __shfl_sync(~0u, first, leader);
  if (known) ranks[t] = first + __popc(same & ((1u << lane) - 1));
}

/// Sums of the 32 warps' values before this thread's, over the block; `total` receives the sum of all. One call per
/// kernel, or a barrier between calls.
__device__ std::int32_t block_exclusive(std::int32_t x, std::int32_t* memory, std::int32_t& total) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp,
            warps = static_cast<int>(blockDim.x) / kWarp;
  std::int32_t inclusive = x;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const std::int32_t before = __shfl_up_sync(~0u, inclusive, step);
    if (lane >= step) inclusive += before;
  }
  if (lane == kWarp - 1) memory[warp] = inclusive;
  __syncthreads();
  std::int32_t before = 0;
  total = 0;
  for (int w = 0; w < warps; ++w) {
    if (w < warp) before += memory[w];
    total += memory[w];
  }
  return before + inclusive - x;
}

__global__ void __launch_bounds__(kScan) scan_totals(std::int32_t* totals, const std::int32_t* starts, std::int64_t n) {
  __shared__ std::int32_t memory[kWarp];
  const std::int64_t i = std::int64_t{blockIdx.x} * kScan + threadIdx.x;
  std::int32_t total = 0;
  block_exclusive(i < n ? starts[i] : 0, memory, total);
  if (threadIdx.x == 0) totals[blockIdx.x] = total;
}
/// starts[v] = tokens with an id below v.
__global__ void __launch_bounds__(kScan) scan(std::int32_t* starts, const std::int32_t* totals, std::int64_t n) {
  __shared__ std::int32_t memory[2][kWarp];
  const std::int64_t i = std::int64_t{blockIdx.x} * kScan + threadIdx.x;
  std::int32_t mine = 0, before = 0, unused = 0;
  for (unsigned b = threadIdx.x; b < blockIdx.x; b += kScan) mine += totals[b];
  block_exclusive(mine, memory[0], before);
  const std::int32_t x = i < n ? starts[i] : 0, inside = block_exclusive(x, memory[1], unused);
  if (i < n) starts[i] = before + inside + x;
}

__global__ void __launch_bounds__(kThreads)
    place_tokens(std::int32_t* order, const std::int32_t* starts, const std::int32_t* ranks, const std::int32_t* ids,
                 std::int64_t tokens, std::int64_t vocab) {
  const std::int64_t t = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (t >= tokens || ids[t] < 0 || ids[t] >= vocab) return;
  order[starts[ids[t]] + ranks[t]] = static_cast<std::int32_t>(t);
}

constexpr int kSorted = 2048;  // tokens of one id that a block can sort in shared memory
/// order[0 .. count) ascending, count <= kSorted.
__device__ void sort_in_block(std::int32_t* order, int count, std::int32_t* values) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) values[i] = order[i];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    int rank = 0;
    for (int j = 0; j < count; ++j) rank += values[j] < values[i];
    order[rank] = values[i];
  }
}
/// Finds the tokens of an id again, in ascending order, among all.
__device__ void collect(std::int32_t* order, std::int32_t id, const std::int32_t* ids, std::int64_t tokens) {
  constexpr int kEach = 4;
  __shared__ std::int32_t memory[2][kWarp];
  std::int32_t found = 0;
  int turn = 0;
  for (std::int64_t base = 0; base < tokens; base += kThreads * kEach, ++turn) {
    const std::int64_t t = base + static_cast<int>(threadIdx.x) * kEach;
    unsigned hits = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (t + i < tokens && ids[t + i] == id) hits |= 1u << i;
    std::int32_t total = 0, at = found + block_exclusive(__popc(hits), memory[turn % 2], total);
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (hits >> i & 1) order[at++] = static_cast<std::int32_t>(t + i);
    found += total;
  }
}

/// A warp per id, or the block for ids with many tokens. Rows of `empty`, if given, that have no token become 0.
template <class G>
__global__ void __launch_bounds__(kThreads)
    sort_runs(std::int32_t* order, const std::int32_t* starts, const std::int32_t* ids, std::int64_t tokens,
              std::int64_t vocab, G* empty, std::int64_t stride, std::int64_t cols) {
  constexpr int N = kLanes<G>;
  __shared__ std::int32_t values[kSorted];
  const std::int64_t first = std::int64_t{blockIdx.x} * (kThreads / kWarp), id = first + threadIdx.x / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, begin = id < vocab ? starts[id] : 0,
            count = id < vocab ? starts[id + 1] - begin : 0;
  if (empty && id < vocab && count == 0)
    for (std::int64_t at = lane * N; at < cols; at += kWarp * N)
      store(empty + id * stride + at, Lanes<N>(0.0f), static_cast<int>(cols - at < N ? cols - at : N));
  if (count > 1 && count <= kWarp) {
    const std::int32_t mine = lane < count ? order[begin + lane] : 0;
    int rank = 0;
    for (int j = 0; j < count; ++j) rank += __shfl_sync(~0u, mine, j) < mine;
    if (lane < count) order[begin + rank] = mine;
  }
  for (std::int64_t v = first; v < first + kThreads / kWarp && v < vocab; ++v) {
    const int from = starts[v], many = starts[v + 1] - from;
    if (many <= kWarp) continue;
    __syncthreads();
    if (many <= kSorted) sort_in_block(order + from, many, values);
    else collect(order + from, static_cast<std::int32_t>(v), ids, tokens);
  }
}

struct Rows {
  void* out;  // gradient of the table
  std::int64_t out_stride;
  bool accumulate;
  const void* dy;
  std::int64_t stride, cols, tokens, vocab;
  const std::int32_t *starts, *order, *ids;
  float* parts;  // (chunks, 2, cols): ids continued from the previous chunk, and into the next
};

/// Block (chunk of sorted tokens, tile of columns). An id whose tokens are all in this chunk is complete; sums of
/// others go to `parts`.
template <class G, class Y> __global__ void __launch_bounds__(128) sum_chunk(Rows r) {
  constexpr int N = kLanes<Y>, K = 8, kChunk = static_cast<int>(Embedding::kChunk);
  __shared__ std::int32_t token[kChunk], id[kChunk];
  const std::int64_t begin = std::int64_t{blockIdx.x} * kChunk, known = r.starts[r.vocab],
                     end = begin + kChunk < known ? begin + kChunk : known;
  const int count = static_cast<int>(end - begin);
  if (count <= 0) return;
  if (threadIdx.x < count) {
    token[threadIdx.x] = r.order[begin + threadIdx.x];
    id[threadIdx.x] = r.ids[token[threadIdx.x]];
  }
  __syncthreads();
  const std::int64_t col = (std::int64_t{blockIdx.y} * 128 + threadIdx.x) * N;
  const int n = static_cast<int>(r.cols - col < N ? r.cols - col : N);
  if (n <= 0) return;
  const auto flush = [&](std::int32_t v, Lanes<N> sum) {
    const bool before = r.starts[v]<begin, behind = r.starts[v + 1]> end;
    if (before || behind)
      return store(r.parts + (std::int64_t{blockIdx.x} * 2 + (before ? 0 : 1)) * r.cols + col, sum, n);
    G* to = static_cast<G*>(r.out) + v * r.out_stride + col;
    store(to, r.accumulate ? sum + load<N>(static_cast<const G*>(to), n) : sum, n);
  };
  Lanes<N> sum(0.0f);
  for (int j = 0; j < count; j += K) {
    Pack<Y, N> dy[K];
#pragma unroll
    for (int k = 0; k < K; ++k)
      dy[k] = read<N>(static_cast<const Y*>(r.dy) + (j + k < count ? token[j + k] : 0) * r.stride + col, 0,
                      j + k < count ? n : 0, Y{});
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (j + k >= count) break;
      if (j + k > 0 && id[j + k] != id[j + k - 1]) flush(id[j + k - 1], sum), sum = Lanes<N>(0.0f);
      sum = sum + widen(dy[k]);
    }
  }
  flush(id[count - 1], sum);
}

/// Block (chunk, tile of columns): completes the id that begins in this chunk and continues after it, if there is one.
template <class G> __global__ void __launch_bounds__(128) join_chunks(Rows r) {
  constexpr int N = 4, K = 8, kChunk = static_cast<int>(Embedding::kChunk);
  const std::int64_t begin = std::int64_t{blockIdx.x} * kChunk, end = begin + kChunk;
  if (end >= r.starts[r.vocab]) return;
  const std::int32_t v = r.ids[r.order[end - 1]];
  if (r.starts[v] < begin || r.starts[v + 1] <= end) return;
  const std::int64_t last = (r.starts[v + 1] - 1) / kChunk, col = (std::int64_t{blockIdx.y} * 128 + threadIdx.x) * N;
  const int n = static_cast<int>(r.cols - col < N ? r.cols - col : N);
  if (n <= 0) return;
  auto sum = load<N>(r.parts + (std::int64_t{blockIdx.x} * 2 + 1) * r.cols + col, n);
  for (std::int64_t c = blockIdx.x + 1; c <= last; c += K) {
    Pack<float, N> part[K];
#pragma unroll
    for (int k = 0; k < K; ++k)
      part[k] =
          read<N>(static_cast<const float*>(r.parts) + (c + k) * 2 * r.cols + col, 0, c + k <= last ? n : 0, 0.0f);
#pragma unroll
    for (int k = 0; k < K; ++k) sum = sum + widen(part[k]);
  }
  G* to = static_cast<G*>(r.out) + v * r.out_stride + col;
  store(to, r.accumulate ? sum + load<N>(static_cast<const G*>(to), n) : sum, n);
}

/// Row v of the positions' gradient = the sum of dy over the tokens at that position: v, then every `per`-th.
template <class G, class Y>
__global__ void __launch_bounds__(128)
    sum_positions(G* out, std::int64_t out_stride, bool accumulate, const Y* dy, std::int64_t stride, std::int64_t cols,
                  std::int64_t tokens, std::int64_t per) {
  constexpr int N = kLanes<Y>, K = 8;
  const std::int64_t v = blockIdx.x, count = v < per ? tokens / per : 0;
  if (count == 0 && accumulate) return;
  for (std::int64_t at = std::int64_t{threadIdx.x} * N; at < cols; at += 128 * N) {
    const int n = static_cast<int>(cols - at < N ? cols - at : N);
    G* place = out + v * out_stride + at;
    Lanes<N> sum = accumulate ? load<N>(static_cast<const G*>(place), n) : Lanes<N>(0.0f);
    for (std::int64_t j = 0; j < count; j += K) {
      Pack<Y, N> part[K];
#pragma unroll
      for (int k = 0; k < K; ++k)
        part[k] = read<N>(dy + ((j + k) * per + v) * stride + at, 0, j + k < count ? n : 0, Y{});
#pragma unroll
      for (int k = 0; k < K; ++k) sum = sum + widen(part[k]);
    }
    store(place, sum, n);
  }
}

/// Sorts the tokens by id and clears rows of dtable without tokens.
void sort_tokens(Stream& s, const Grad& dtable, const View& ids, const Tensor& starts, const Tensor& order,
                 const Tensor& ranks) {
  const std::int64_t tokens = ids.size(), vocab = dtable[0], scans = (starts.size() + kScan - 1) / kScan;
  const auto* id = ids.ptr<std::int32_t>();
  auto *start = starts.ptr<std::int32_t>(), *token = order.ptr<std::int32_t>(), *rank = ranks.ptr<std::int32_t>(),
       *totals = rank + tokens;
  check(cudaMemsetAsync(start, 0, static_cast<std::size_t>(starts.bytes()), queue(s)), "embedding_backward");
  if (tokens > 0) count_ids<<<blocks_for(tokens, kThreads), kThreads, 0, queue(s)>>>(start, rank, id, tokens, vocab);
  scan_totals<<<blocks_for(scans, 1), kScan, 0, queue(s)>>>(totals, start, starts.size());
  scan<<<blocks_for(scans, 1), kScan, 0, queue(s)>>>(start, totals, starts.size());
  if (tokens > 0)
    place_tokens<<<blocks_for(tokens, kThreads), kThreads, 0, queue(s)>>>(token, start, rank, id, tokens, vocab);
  visit_dtype(dtable.dtype(), [&]<class G>() {
    sort_runs<<<blocks_for(vocab, kThreads / kWarp), kThreads, 0, queue(s)>>>(
        token, start, id, tokens, vocab, dtable.accumulate() ? nullptr : dtable.ptr<G>(), dtable.row_stride(),
        dtable.cols());
  });
  launched("embedding_backward.sort");
}

}  // namespace

void embedding(Stream& s, Tensor y, View table, View ids, View positions, View places) {
  if (y.size() == 0) return;
  const Lookup l{y.data(),
                 table.data(),
                 Parameter(positions),
                 ids.ptr<std::int32_t>(),
                 places ? places.ptr<std::int32_t>() : nullptr,
                 y.rows(),
                 y.cols(),
                 ids[-1],
                 table[0],
                 positions ? positions[0] : 0,
                 y.row_stride(),
                 table.row_stride(),
                 positions ? positions.row_stride() : 0};
  visit_dtype(y.dtype(), [&]<class Y>() {
    visit_dtype(table.dtype(), [&]<class T>() {
      const bool whole =
          l.positions.whole() &&
          whole_packs<Y>(l.cols, {{l.y, l.y_stride}, {l.table, l.table_stride}, {nullptr, l.position_stride}});
      const auto with = [&]<bool kPlaces>() {
        return whole ? lookup<Y, T, kPlaces, true> : lookup<Y, T, kPlaces, false>;
      };
      const auto kernel = l.positions.data ? with.template operator()<true>() : with.template operator()<false>();
      kernel<<<blocks_for(y.rows(), 8), 256, 0, queue(s)>>>(l);
      launched("embedding");
    });
  });
}

void embedding_backward(Stream& s, Grad dtable, Grad dpositions, View ids, View dy, Tensor starts, Tensor order,
                        Tensor ranks, Tensor parts) {
  const std::int64_t cols = dy.cols(), tokens = dy.rows(), per = ids[-1] > 0 ? ids[-1] : 1;
  if (cols == 0) return;
  if (dtable && dtable[0] > 0) {
    sort_tokens(s, dtable, ids, starts, order, ranks);
    const Rows r{dtable.data(),
                 dtable.row_stride(),
                 dtable.accumulate(),
                 dy.data(),
                 dy.row_stride(),
                 cols,
                 tokens,
                 dtable[0],
                 starts.ptr<std::int32_t>(),
                 order.ptr<std::int32_t>(),
                 ids.ptr<std::int32_t>(),
                 parts.ptr<float>()};
    if (tokens > 0)
      visit_dtype(dtable.dtype(), [&]<class G>() {
        const unsigned chunks = blocks_for(tokens, Embedding::kChunk);
        visit_dtype(dy.dtype(), [&]<class Y>() {
          sum_chunk<G, Y><<<dim3(chunks, blocks_for(cols, 128 * kLanes<Y>)), 128, 0, queue(s)>>>(r);
        });
        join_chunks<G><<<dim3(chunks, blocks_for(cols, 128 * 4)), 128, 0, queue(s)>>>(r);
        launched("embedding_backward");
      });
  }
  if (!dpositions || dpositions[0] == 0) return;
  visit_dtype(dpositions.dtype(), [&]<class G>() {
    visit_dtype(dy.dtype(), [&]<class Y>() {
      sum_positions<G, Y><<<blocks_for(dpositions[0], 1), 128, 0, queue(s)>>>(
          dpositions.ptr<G>(), dpositions.row_stride(), dpositions.accumulate(), dy.ptr<Y>(), dy.row_stride(), cols,
          tokens, per);
      launched("embedding_backward");
    });
  });
}

}  // namespace hpcdl::cuda
