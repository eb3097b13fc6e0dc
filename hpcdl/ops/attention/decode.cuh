#pragma once
// The kernels for one query per sequence (.cu files): bound by reading keys and values once. Blocks divide the keys of a
// key/value head; one pass serves up to four of its query heads, or 16 on tensor cores. The blocks combine their results
// themselves if they form a cluster, else a second kernel does. A warp loads keys and values while it processes the
// previous ones. Scores are multiplied by the scales of codes of keys, weights by those of values, so that products take
// the codes themselves.

#include "hpcdl/cuda/overlap.cuh"
#include "hpcdl/cuda/reduce.cuh"
#include "hpcdl/cuda/relative_exp.cuh"
#include "hpcdl/cuda/shared_memory.h"
#include "hpcdl/cuda/warpgroup.cuh"
#include "hpcdl/ops/attention/decode_mma.cuh"
#include "hpcdl/ops/attention/decode_shape.h"
#include "hpcdl/ops/attention/problem.cuh"

namespace hpcdl::cuda::decoding {

inline constexpr int kWarps = 8;       // per block
inline constexpr int kMostBlocks = 8;  // per cluster

/// Relaxed, so that the load stays before await_previous() (cuda/overlap.cuh).
__device__ inline int load_relaxed(const std::int32_t* p) {
  int v;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

struct Decode {
  Heads q, out;
  PagedHeads k, v;                                           // in pages if they have a table
  float *lse = nullptr, *parts = nullptr;                    // (B, H); (B, H, splits, D + 2): sums, top, sum
  const std::int32_t *starts = nullptr, *lengths = nullptr;  // of sequences in pages
  int sequences = 0;  // of which every query is computed like a sequence of its own; 0: each has one query
  int heads = 0, kv_heads = 0, capacity = 0, splits = 1, width = 0;
  bool cluster = false;  // the splits form a cluster
  float scale = 0;       // times log2 e
  int window = 0;        // keys that a query sees; 0: all
  float cap = 0;         // of scores times log2 e; 0: none

  __device__ int keys(int b) const {
    if (sequences == 0) return lengths ? lengths[b] : capacity;
    const int r = sequence(b);
    return lengths[r] - (starts[r + 1] - 1 - b);
  }
  /// The first of `all` keys that a query sees.
  __device__ int first_key(int all) const { return window > 0 && all > window ? all - window : 0; }
  /// The row of q and out that belongs to sequence b: no kernel writes it, so it is found before await_previous().
  __device__ int row(int b) const { return starts && sequences == 0 ? load_relaxed(starts + b) : b; }
  /// The sequence of query b.
  __device__ int sequence(int b) const {
    int first = 0, end = sequences;  // starts[first] <= b < starts[end]
    while (end - first > 1) {
      const int middle = (first + end) / 2;
      (load_relaxed(starts + middle) <= b ? first : end) = middle;
    }
    return sequences > 0 ? first : b;
  }
  /// Head h of such a row.
  __device__ std::int64_t at(const Heads& x, int row, int h) const {
    return starts ? x.at(0, row, h) : x.at(row, 0, h);
  }
};

/// The rows of a key/value head of a sequence, elements or codes. The table is read like the lengths: no kernel writes them.
template <class T> struct KeyRows {
  const T* base;
  const std::int32_t* table;
  std::int64_t page, token;

  __device__ KeyRows(const PagedHeads& x, int b, int kv)
      : base(static_cast<const T*>(x.data) + (x.table ? kv * x.head : x.Heads::at(b, 0, kv))),
        table(x.table ? x.table + b * x.row : nullptr),
        page(x.batch),
        token(x.token) {}
  /// The page of row t; 0 without pages.
  __device__ int page_of(int t) const { return table ? table[t / static_cast<int>(kPageTokens)] : 0; }
  /// Row t, which lies in page `number`, followed by the other rows of that page.
  __device__ const T* at(int t, int number) const {
    return base + (table ? number * page + t % static_cast<int>(kPageTokens) * token : t * token);
  }
  /// The scales of codes, from that of row t on, in the same way.
  __device__ const float* scales(int t, int number) const {
    return reinterpret_cast<const float*>(base + number * page + kPageTokens * token) +
           t % static_cast<int>(kPageTokens);
  }
};

/// The result of a pass over some keys for one query head: the sum of 2^(scale (score - top)) v, the sum of 2^(scale
/// (score - top)), and top.
template <int N> struct Partial {
  Lanes<N> out{0.0f};
  float sum = 0, top = -__builtin_inff();

  __device__ void join(const Lanes<N>& o, float s, float t, float scale) {
    if (t == -__builtin_inff()) return;
    const float here = fmaxf(top, t), mine = exp2f(exponent_between(top, here, scale)),
                other = exp2f(exponent_between(t, here, scale));
    out = out * Lanes<N>(mine) + o * Lanes<N>(other);
    sum = sum * mine + s * other;
    top = here;
  }
};

/// *p in block `rank` of the cluster.
[[maybe_unused]] __device__ inline float read_shared(const float* p, int rank) {  // no cluster before sm_90
  float v;
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %1, %2;\n"
      "ld.shared::cluster.f32 %0, [there];\n}"
      : "=f"(v)
      : "r"(static_cast<unsigned>(__cvta_generic_to_shared(p))), "r"(rank)
      : "memory");
  return v;
}

/// The results of a block of a cluster: per head its sums, then the sum of weights and their top.
template <int kHeads, int kMost> using Found = float[kHeads][kMost + 2];

/// The factor by which the results with this top count next to those with the largest one.
__device__ inline float weight_of(float top, float largest, float scale) {
  return top == -__builtin_inff() ? 0.0f : exp2f(exponent_between(top, largest, scale));
}

/// Combines the results of the warps of a block for heads [h0, h0 + heads): per head up to kMost sums, then the sum of
/// weights and their top; then, with `own`, those of the blocks of a cluster. `scale` applies to the tops.
template <int kCount, int kHeads, int kMost>
__device__ void finish(const Decode& p, float (&memory)[kCount][kHeads][kMost + 2], Found<kHeads, kMost>& own, int b,
                       int row, int h0, int heads, float scale) {
  static_assert(kHeads <= kWarp && (kCount & (kCount - 1)) == 0);
  constexpr int kThreads = kCount * kWarp;
  const auto put = [&](int h, int d, float out, float sum, float top) {
    const std::int64_t head = static_cast<std::int64_t>(b) * p.heads + h0 + h;
    p.out.put(p.at(p.out, row, h0 + h) + d, out / sum);
    if (p.lse && d == 0) p.lse[head] = (__fmul_rn(top, scale) + log2f(sum)) / kLog2e;
  };
  // kCount neighbouring threads find the weights of the warps for one head.
  if (const int t = static_cast<int>(threadIdx.x); t / kWarp * kWarp < kHeads * kCount) {
    const int h = t / kCount < kHeads ? t / kCount : kHeads - 1;
    float* const mine = memory[t % kCount][h] + kMost;
    const float top = h < heads ? mine[1] : -__builtin_inff();
    float largest = top;
#pragma unroll
    for (int apart = kCount / 2; apart > 0; apart /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, apart));
    const float weight = weight_of(top, largest, scale);
    float sum = h < heads ? weight * mine[0] : 0;
#pragma unroll
    for (int apart = kCount / 2; apart > 0; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
    if (t < kHeads * kCount) {
      mine[0] = weight;
      if (t % kCount == 0) own[h][kMost] = sum, own[h][kMost + 1] = largest;
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < heads * p.width; i += kThreads) {
    const int h = i / p.width, d = i % p.width;
    float out = 0;
#pragma unroll
    for (int w = 0; w < kCount; ++w) {
      const float weight = memory[w][h][kMost];
      if (weight != 0) out = ::fmaf(weight, memory[w][h][d], out);
    }
    if (p.splits == 1) {
      put(h, d, out, own[h][kMost], own[h][kMost + 1]);
    } else if (p.cluster) {
      own[h][d] = out;
    } else {
      const std::int64_t head = static_cast<std::int64_t>(b) * p.heads + h0 + h;
      float* to = p.parts + (head * p.splits + blockIdx.x) * (p.width + 2);
      to[d] = out;
      if (d == 0) to[p.width] = own[h][kMost], to[p.width + 1] = own[h][kMost + 1];
    }
  }
#if HPCDL_CLUSTERS
  if (!p.cluster) return;
  cluster_sync();
  const int each = (heads * p.width + p.splits - 1) / p.splits, begin = static_cast<int>(cluster_rank()) * each,
            end = begin + each < heads * p.width ? begin + each : heads * p.width;
  for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += kThreads) {
    const int h = i / p.width, d = i % p.width;
    float out[kMostBlocks], sums[kMostBlocks], tops[kMostBlocks], largest = -__builtin_inff();
#pragma unroll
    for (int r = 0; r < kMostBlocks; ++r) {
      const int from = r < p.splits ? r : 0;
      out[r] = read_shared(&own[h][d], from), sums[r] = read_shared(&own[h][kMost], from);
      tops[r] = r < p.splits ? read_shared(&own[h][kMost + 1], from) : -__builtin_inff();
    }
#pragma unroll
    for (int r = 0; r < kMostBlocks; ++r) largest = fmaxf(largest, tops[r]);
    float all = 0, sum = 0;
#pragma unroll
    for (int r = 0; r < kMostBlocks; ++r) {
      const float weight = weight_of(tops[r], largest, scale);
      if (weight != 0) all = ::fmaf(weight, out[r], all), sum = ::fmaf(weight, sums[r], sum);
    }
    put(h, d, all, sum, largest);
  }
  cluster_sync();  // other blocks may still read this block's results
#endif
}

/// Block (split, pass of query heads, sequence). kShare threads hold a row with kPacks 16-byte accesses each; those
/// beyond the width are idle. kWhole: every row consists of whole accesses.
template <class K, int kShare, int kPacks, int kHeads, bool kWhole>
__global__ void __launch_bounds__(kWarps* kWarp) decode(const __grid_constant__ Decode p) {
  constexpr int kPack = kLanes<K>, N = kPacks * kPack, kMost = kShare * N, kRows = kWarp / kShare,
                kBatch = 4 / kPacks;  // rows of a thread in flight
  __shared__ float memory[kWarps][kHeads][kMost + 2];
  __shared__ Found<kHeads, kMost> own;
  let_next_begin();
  const int sequence_row = p.row(static_cast<int>(blockIdx.z));
  await_previous();
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp,
            share = lane % kShare, row = lane / kShare;
  const int b = static_cast<int>(blockIdx.z), h0 = static_cast<int>(blockIdx.y) * kHeads,
            kv = h0 / (p.heads / p.kv_heads);
  const int keys = p.keys(b), first = p.first_key(keys),
            each = ((keys - first + p.splits - 1) / p.splits + kRows - 1) / kRows * kRows;
  const int begin = first + static_cast<int>(blockIdx.x) * each, end = begin + each < keys ? begin + each : keys;
  const auto column = [&](int i) { return (share + i / kPack * kShare) * kPack + i % kPack; };
  const auto fetch = [&](uint4(&to)[kPacks], const K* from, bool there) {
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
      const int col = column(j * kPack), here = there ? p.width - col : 0;
      to[j] = make_uint4(0, 0, 0, 0);
      if constexpr (kWhole) {
        if (here > 0) to[j] = __ldcs(reinterpret_cast<const uint4*>(from + col));
      } else if (here > 0) {
        if constexpr (kHasScales<K>) {
#pragma unroll
          for (int i = 0; i < kPack; ++i)
            if (i < here) memcpy(reinterpret_cast<K*>(&to[j]) + i, from + col + i, 1);
        } else {
          const auto pack = read<kPack>(from + col, 0, here, K{});
          memcpy(&to[j], &pack, sizeof to[j]);
        }
      }
    }
  };
  const auto values = [](const uint4(&from)[kPacks]) {
    return map<N>([&](int i) { return widen(reinterpret_cast<const K*>(&from[i / kPack])[i % kPack]); });
  };
  const KeyRows<K> ks(p.k, p.sequence(b), kv), vs(p.v, p.sequence(b), kv);
  Lanes<N> q[kHeads];
  Partial<N> state[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h)
    q[h] = map<N>([&](int i) {
      return column(i) < p.width ? p.q.get(p.at(p.q, sequence_row, h0 + h) + column(i)) * p.scale : 0.0f;
    });
  for (int key = begin + warp * kRows; key < end; key += kWarps * kRows * kBatch) {
    uint4 kraw[kBatch][kPacks], vraw[kBatch][kPacks];
    [[maybe_unused]] float kscale[kBatch], vscale[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = key + i * kWarps * kRows + row;
      const int page = at < end ? ks.page_of(at) : 0;
      fetch(kraw[i], ks.at(at, page), at < end);
      fetch(vraw[i], vs.at(at, page), at < end);
      if constexpr (kHasScales<K>) {
        kscale[i] = at < end ? *ks.scales(at, page) : 0.0f;
        vscale[i] = at < end ? *vs.scales(at, page) : 0.0f;
      }
    }
    float score[kBatch][kHeads];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const auto k = values(kraw[i]);
      const bool there = key + i * kWarps * kRows + row < end;
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        float dot = sum(q[h] * k);
#pragma unroll
        for (int offset = kShare / 2; offset > 0; offset /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, offset);
        if constexpr (kHasScales<K>) dot *= kscale[i];
        if (p.cap > 0) dot = p.cap * branchless_tanh(dot / p.cap);
        score[i][h] = there ? dot : -__builtin_inff();
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float top = state[h].top;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) top = fmaxf(top, score[i][h]);
      const float base = top == -__builtin_inff() ? 0.0f : top, shrink = exp2f(state[h].top - base);
      state[h].top = top;
      state[h].sum *= shrink;
      state[h].out = state[h].out * Lanes<N>(shrink);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) state[h].sum += score[i][h] = exp2f(score[i][h] - base);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const auto v = values(vraw[i]);
      if constexpr (kHasScales<K>) {
#pragma unroll
        for (int h = 0; h < kHeads; ++h) score[i][h] *= vscale[i];
      }
#pragma unroll
      for (int h = 0; h < kHeads; ++h) state[h].out = fma(Lanes<N>(score[i][h]), v, state[h].out);
    }
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int offset = kShare; offset < kWarp; offset *= 2) {
      const auto other = map<N>([&](int i) { return __shfl_xor_sync(0xffffffffu, state[h].out.v[i], offset); });
      const float s = __shfl_xor_sync(0xffffffffu, state[h].sum, offset),
                  t = __shfl_xor_sync(0xffffffffu, state[h].top, offset);
      state[h].join(other, s, t, 1.0f);  // q is already scaled
    }
    if (row == 0) {
#pragma unroll
      for (int i = 0; i < N; ++i) memory[warp][h][column(i)] = state[h].out.v[i];
      if (share == 0) memory[warp][h][kMost] = state[h].sum, memory[warp][h][kMost + 1] = state[h].top;
    }
  }
  __syncthreads();
  finish<kWarps, kHeads, kMost>(p, memory, own, b, sequence_row, h0, kHeads, 1.0f);
}

/// What kWarps blocks of decode_mma have in common: the type of queries and of the pool, the widest head, and the query
/// heads of a pass, 8 or 16.
template <class T_, class K_, int kWidth_, int kQueries_, int kWarps_> struct DecodeShape {
  using T = T_;
  using K = K_;
  static constexpr int kWidth = kWidth_, kQueries = kQueries_, kWarps = kWarps_, kStages = 3,
                       kBlocks = kWarps == 4 ? decode_blocks(kWidth, sizeof(K), kQueries) : 1;
  struct Results {
    float warps[kWarps][kQueries][kWidth + 2];
    Found<kQueries, kWidth> own;
  };
  /// Whether a tile is in registers; else several are in shared memory, and then results.
  static constexpr bool kInRegisters = !kHasScales<K> && kWidth <= 128;
  union Memory {
    DecodeTile<K, kWidth> tiles[kInRegisters ? 1 : kWarps][kInRegisters ? 1 : kStages];
    Results results;
  };
  static constexpr int kBytes = sizeof(Memory);
};

/// Block (split, pass of query heads, sequence).
template <class S>
__global__ void __launch_bounds__(S::kWarps* kWarp, S::kBlocks) decode_mma(const __grid_constant__ Decode p) {
  using T = typename S::T;
  using K = typename S::K;
  constexpr int kQueries = S::kQueries, kWidth = S::kWidth, kStep = 16 * S::kWarps;
  extern __shared__ __align__(16) char bytes[];
  auto& memory = *reinterpret_cast<typename S::Memory*>(bytes);
  let_next_begin();
  const int group = p.heads / p.kv_heads, passes = (group + kQueries - 1) / kQueries, b = static_cast<int>(blockIdx.z),
            kv = static_cast<int>(blockIdx.y) / passes;
  const int first = static_cast<int>(blockIdx.y) % passes * kQueries,
            heads = group - first < kQueries ? group - first : kQueries, h0 = kv * group + first;
  // Tiles of 16 keys do not cross pages.
  const int keys = p.keys(b), hidden = p.first_key(keys), aligned = hidden / 16 * 16,
            each = ((keys - aligned + p.splits - 1) / p.splits + 15) / 16 * 16,
            warp = static_cast<int>(threadIdx.x) / kWarp, row = p.row(b);
  const int begin = aligned + static_cast<int>(blockIdx.x) * each, end = begin + each < keys ? begin + each : keys;
  DecodeWarp<T, K, KeyRows<K>, kWidth, kQueries> w(KeyRows<K>(p.k, p.sequence(b), kv),
                                                   KeyRows<K>(p.v, p.sequence(b), kv), begin + 16 * warp, end, p.width);
  w.hidden = hidden, w.cap = p.cap / p.scale;
  // The preceding kernels write only the last token: those that wrote earlier tokens ended before the lengths changed.
  const auto is_early = [&](int at) { return p.lengths && at + 16 < keys; };
  const auto bring_query = [&] {
    await_previous();
    w.bring_query(static_cast<const T*>(p.q.data) + p.at(p.q, row, h0), p.q.head, heads);
  };
  if constexpr (S::kInRegisters) {
    RegisterTile<K, kWidth> tile;
    const int page = w.page_of(w.at);
    const auto bring = [&](bool early) {
      if (is_early(w.at) == early && w.at < end) w.bring_keys(tile, w.at, page), w.bring_values(tile, w.at, page);
    };
    bring(true);
    bring_query();
    bring(false);
    w.walk(tile, kStep, p.scale);
  } else {
    auto& tiles = memory.tiles[warp];
    int pages[S::kStages];
#pragma unroll
    for (int i = 0; i < S::kStages; ++i) pages[i] = w.page_of(w.at + i * kStep);
    const auto bring = [&](bool early) {
#pragma unroll
      for (int i = 0; i < S::kStages; ++i)
        if (const int at = w.at + i * kStep; is_early(at) == early) w.bring(tiles[i], at, pages[i]);
    };
    bring(true);
    bring_query();
    bring(false);
    w.walk(tiles, kStep, p.scale);
    copies_arrived<0>();
    __syncthreads();  // results take the place of tiles
  }
  w.put(memory.results.warps[warp]);
  __syncthreads();
  finish<S::kWarps, kQueries, kWidth>(p, memory.results.warps, memory.results.own, b, row, h0, heads, p.scale);
}

inline unsigned blocks_of_cluster(const Decode& p) { return p.cluster ? static_cast<unsigned>(p.splits) : 1; }

template <class K, int kShare, int kPacks, int kHeads, bool kWhole> void start(Stream& s, const Decode& p, int batch) {
  const dim3 grid(static_cast<unsigned>(p.splits), static_cast<unsigned>(p.heads / kHeads),
                  static_cast<unsigned>(batch));
  launch_overlapped(queue(s), overlaps(s, batch), decode<K, kShare, kPacks, kHeads, kWhole>,
                    {.grid = grid, .block = kWarps * kWarp, .cluster = blocks_of_cluster(p)}, "attention", p);
}
template <class S> bool start_mma(Stream& s, const Decode& p, int batch) {
  if (!has_room(s, S::kBytes)) return false;
  const auto kernel = decode_mma<S>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kBytes), "attention");
  if (!S::kInRegisters)  // loads pass through the rest, which is L1
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
          "attention");
  const int passes = (p.heads / p.kv_heads + S::kQueries - 1) / S::kQueries;
  const dim3 grid(static_cast<unsigned>(p.splits), static_cast<unsigned>(p.kv_heads * passes),
                  static_cast<unsigned>(batch));
  launch_overlapped(queue(s), overlaps(s, batch), kernel,
                    {.grid = grid, .block = S::kWarps * kWarp, .shared = S::kBytes, .cluster = blocks_of_cluster(p)},
                    "attention", p);
  return true;
}
template <class T, class K, int kWidth, int kQueries> bool start_mma(Stream& s, const Decode& p, int batch) {
  // If no multiprocessor gets a second block, blocks have as many warps as shared memory can hold tiles for, so that
  // each warp has few tiles to process in sequence.
  constexpr int kFew = 4, kMany = std::max(kFew, 1024 / (kWidth * (kQueries / 8)));
  const bool many = p.cluster && p.splits * p.kv_heads * batch <= multiprocessors(s);
  return many ? start_mma<DecodeShape<T, K, kWidth, kQueries, kMany>>(s, p, batch)
              : start_mma<DecodeShape<T, K, kWidth, kQueries, kFew>>(s, p, batch);
}
/// False if the tensor-core kernel does not support the call, of queries T and pools K.
template <class T, class K> bool start_mma(Stream& s, const Decode& p, int batch) {
  constexpr int kNarrow = 32;  // heads up to here would leave half of each product empty
  if (p.width <= kNarrow || p.width > 256 || p.width % kLanes<K> != 0) return false;
  if (!p.q.whole_pieces() || !p.k.whole_pieces() || !p.v.whole_pieces()) return false;
  const auto with_width = [&]<int kQueries>() {
    if (p.width <= 64) return start_mma<T, K, 64, kQueries>(s, p, batch);
    if (p.width <= 128) return start_mma<T, K, 128, kQueries>(s, p, batch);
    return start_mma<T, K, 256, kQueries>(s, p, batch);
  };
  return p.heads / p.kv_heads > 8 ? with_width.template operator()<16>() : with_width.template operator()<8>();
}

/// Pools of codes, whatever the call: decode_codes.cu. Returns whether scores carry the scale.
bool start_codes(Stream& s, const Decode& p, int batch);

}  // namespace hpcdl::cuda::decoding
