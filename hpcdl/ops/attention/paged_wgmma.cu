#include "hpcdl/ops/attention/paged_wgmma.h"

#include <bit>

#include "hpcdl/cuda/relative_exp.cuh"
#include "hpcdl/ops/attention/forward_wgmma.cuh"

// The forward kernel of attention (forward_wgmma.cuh) over packed sequences whose keys and values lie in pages: a step
// of keys is two pages, which the copy engine loads one by one. What a page holds beyond its sequence's keys may be
// anything, so consumers overwrite such values with zeros before they multiply them. The rows of a tile are the queries
// of some tokens in heads that read the same keys: a sequence with few tokens then needs few tiles. Queries of a tile
// beyond the end of a sequence are those of the next; their results are not stored.

namespace hpcdl::cuda {
namespace {

struct PagedProblem : ForwardProblem {  // queries: the most of a sequence
  const std::int32_t *starts = nullptr, *lengths = nullptr, *pages = nullptr;
  int row = 0;  // entries of a row of pages
  Heads out;
  int width = 0;

  /// In units of the heads that share a tile.
  __host__ __device__ int all_heads() const { return batch * (heads >> shift); }
  __host__ __device__ int tiles_of_head(int rows) const { return ((queries << shift) + rows - 1) / rows; }
};

/// A tile of queries of one sequence; head: the first of those that share it. No steps: the sequence has fewer queries.
struct PagedTile : ForwardTile {
  int begin, queries, keys;  // first row of the sequence; its queries and keys

  /// The first key that a query of the tile sees if there is a window.
  __device__ int first_key(const PagedProblem& p) const { return ::max(first + keys - queries - p.window + 1, 0); }

  template <class Shape> static __device__ PagedTile find(const PagedProblem& p, int tile) {
    const int rows = p.tiles_of_head(Shape::kQueries), of_one = p.heads >> p.shift, tokens = Shape::kQueries >> p.shift;
    const auto [head, from_last] = InGroups::find(tile, p.all_heads(), rows, p.section);
    PagedTile t{{(head % of_one) << p.shift, head / of_one, (rows - 1 - from_last) * tokens, 0, 0}, 0, 0, 0};
    t.begin = p.starts[t.sequence], t.queries = p.starts[t.sequence + 1] - t.begin, t.keys = p.lengths[t.sequence];
    if (t.first >= t.queries) return t;
    const int end = t.first + tokens + t.keys - t.queries, seen = end < t.keys ? end : t.keys;
    t.steps = (seen + Shape::kKeys - 1) / Shape::kKeys;
    if constexpr (Shape::kWindow) t.begin_step = t.first_key(p) / Shape::kKeys;
    return t;
  }
};

#if HPCDL_SM90A

/// Called by one thread.
template <class Shape>
__device__ void produce(const ForwardMemory<Shape>& m, const TensorMap& q, const TensorMap& k, const TensorMap& v,
                        const PagedProblem& p, int tiles) {
  constexpr int kPage = static_cast<int>(kPageTokens), kPages = Shape::kKeys / kPage;
  static_assert(Shape::kKeys % kPage == 0);
  auto ks = m.keys().to_put(), vs = m.values().to_put();
  auto qs = m.queries().to_put();
  for (const int tile : Raster{tiles}) {
    const auto t = PagedTile::find<Shape>(p, tile);
    if (t.steps == 0) continue;
    const int kv = t.head / (p.heads / p.kv_heads), last = (t.keys - 1) / kPage;
    const auto* const table = p.pages + t.sequence * p.row;
    Barrier* const full = m.queries().put(qs, Shape::kQueryBytes);
    for (int i = 0; i < Shape::kHalves; ++i)
      tma_load(m.query(qs.stage) + i * Shape::kQueries * 128, q, full, 64 * i, t.head, t.begin + t.first, 0);
    qs.next();
    // Instead of a page beyond the last one, the last one again: its keys are masked. Pages before the window may be gone:
    // zeros.
    [[maybe_unused]] const int begin = t.first_key(p) / kPage;
    const auto load = [&](char* to, const TensorMap& map, Barrier* b, int step) {
      for (int j = 0; j < kPages; ++j) {
        const int at = step * kPages + j, page = Shape::kWindow && at < begin ? -1 : table[at < last ? at : last];
        for (int i = 0; i < Shape::kHalves; ++i)
          tma_load(to + (i * Shape::kKeys + j * kPage) * 128, map, b, 64 * i, 0, kv, page);
      }
    };
    const auto bring_keys = [&](int step) {
      load(m.key(ks.stage), k, m.keys().put(ks, Shape::kKeyBytes), step);
      ks.next();
    };
    const auto bring_values = [&](int step) {
      load(m.value(vs.stage), v, m.values().put(vs, Shape::kKeyBytes), step);
      vs.next();
    };
    bring_keys(t.steps - 1);
    for (int step = t.steps - 2; step >= t.begin_step; --step) bring_keys(step), bring_values(step + 1);
    bring_values(t.begin_step);
  }
}

/// Called by all consumers: sets the values of the last step that lie beyond the sequence's keys to 0.
template <class C, class Shape>
__device__ void clear_values(const C& c, const ForwardMemory<Shape>& m, const PagedTile& t) {
  const int left = t.keys - (t.steps - 1) * Shape::kKeys;
  if (left >= Shape::kKeys) return;
  constexpr int kConsumers = 128 * Shape::kGroups, kBarrier = 12;
  m.values().get(c.vs);
  const int pieces = (Shape::kKeys - left) * 8;  // of 16 bytes, in each half
  for (int i = 0; i < Shape::kHalves; ++i)
    for (int n = static_cast<int>(threadIdx.x); n < pieces; n += kConsumers)
      *reinterpret_cast<uint4*>(m.value(c.vs.stage) + (i * Shape::kKeys + left) * 128 + n * 16) =
          make_uint4(0, 0, 0, 0);
  fence_async_proxy();
  named_sync(kBarrier, kConsumers);
}

/// Stores the results of a warpgroup whose last queries do not exist.
template <class T, class C> __device__ void store_rows(const C& c, const PagedProblem& p, const PagedTile& t) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float inverse = 1.0f / quad_sum(c.state.row[h].sum);
    const int row = c.group * 64 + c.row() + 8 * h, query = t.first + (row >> p.shift),
              head = t.head + (row & ((1 << p.shift) - 1));
    if (query >= t.queries) continue;
    T* const to = static_cast<T*>(p.out.data) + p.out.at(0, t.begin + query, head);
#pragma unroll
    for (int j = 0; j < C::kOut / 4; ++j)
      if (const int column = 8 * j + static_cast<int>(threadIdx.x) % 4 * 2; column < p.width)
        *reinterpret_cast<unsigned*>(to + column) =
            pack_pair<T>(c.out[4 * j + 2 * h] * inverse, c.out[4 * j + 2 * h + 1] * inverse);
  }
}

#endif

/// Tensor maps: q and out as in attention_forward_wgmma, with one batch; k and v (width, 64 rows, heads, pages) with
/// boxes of (64, 64, 1, 1).
template <class T, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    paged_forward_wgmma(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                        const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap out,
                        const __grid_constant__ PagedProblem p) {
#if HPCDL_SM90A
  const ForwardMemory<Shape> m;
  const int tiles = p.all_heads() * p.tiles_of_head(Shape::kQueries);
  m.start();
  const auto consume = [&](int group) {
    ForwardConsumer<T, Shape> c{.m = m, .p = p, .group = group, .keys = 0, .offset = 0, .way = {.barrier = 8 + group}};
    if (Shape::kTurns && group == Shape::kGroups - 1) named_arrive(1, 256);
    for (const int tile : Raster{tiles}) {
      const auto t = PagedTile::find<Shape>(p, tile);
      if (t.steps == 0) continue;
      c.keys = t.keys, c.offset = t.keys - t.queries;
      c.attend(t, [&] { clear_values(c, m, t); });
      const int left = ((t.queries - t.first) << p.shift) - group * 64;  // rows
      if (left >= 64) c.store({t.head, 0, t.begin + t.first + ((group * 64) >> p.shift) - group * 64, t.steps, 0}, out);
      else if (left > 0) store_rows<T>(c, p, t);
    }
    if (c.way.leader()) tma_wait<0>();
  };
  roles<Producers<Shape::kProducer>, Consumers<Shape::kGroups, Shape::kConsumer>>(
      [&](int) { produce<Shape>(m, q, k, v, p, tiles); }, consume);
#endif
}

TensorMap page_map(const View& pool) {
  return tensor_map(pool.data(), pool.dtype(), {pool[3], kPageTokens, pool[1], pool[0]},
                    {pool.strides()[2], pool.strides()[1], pool.strides()[0]},
                    {64, static_cast<int>(kPageTokens), 1, 1});
}

template <class T, class Shape> void start(Stream& s, const PagedAttend& c) {
  const auto one = c.packed();
  const auto width = one.width();
  const int heads = c.args.heads, kv_heads = one.kv_heads(), batch = static_cast<int>(c.lengths[0]);
  PagedProblem p;
  p.batch = batch, p.heads = heads, p.kv_heads = kv_heads, p.queries = static_cast<int>(c.most_queries());
  p.causal = true, p.scale = one.scale() * kLog2e;
  const int group = heads / kv_heads, together = std::min(group & -group, 64);
  p.shift = std::countr_zero(static_cast<unsigned>(together));
  p.section = section_of(batch, heads / together, kv_heads, c.pages[1] * kPageTokens, width);
  p.starts = c.starts.ptr<std::int32_t>(), p.lengths = c.lengths.ptr<std::int32_t>();
  p.window = c.args.window;
  p.pages = c.pages.ptr<std::int32_t>(), p.row = static_cast<int>(c.pages[1]);
  p.out = heads_of(c.out, width), p.width = static_cast<int>(width);
  const auto tiles = std::int64_t{p.all_heads()} * p.tiles_of_head(Shape::kQueries);
  const auto blocks = std::min<std::int64_t>(tiles, multiprocessors(s) * Shape::kBlocks);
  constexpr int kBytes = ForwardMemory<Shape>::kBytes;
  allow_shared<paged_forward_wgmma<T, Shape>>(s, kBytes);
  paged_forward_wgmma<T, Shape><<<static_cast<unsigned>(blocks), Shape::kThreads, kBytes, queue(s)>>>(
      head_map(c.q, heads, width, Shape::kQueries, together), page_map(c.k), page_map(c.v),
      head_map(c.out, heads, width, 64, together), p);
  launched("paged_attention");
}

}  // namespace

bool wgmma_fits(const Stream& s, const PagedAttend& c) {
  const auto one = c.packed();
  const auto width = one.width();
  const auto whole = [](const View& pool) { return reinterpret_cast<std::uintptr_t>(pool.data()) % 16 == 0; };
  return has_sm90a(s) && width % 8 == 0 && width <= 128 && (c.q.dtype() == DType::bf16 || c.q.dtype() == DType::f16) &&
         c.k.dtype() == c.q.dtype() && c.v.dtype() == c.q.dtype() && c.out.dtype() == c.q.dtype() && one.scale() > 0 &&
         c.lengths[0] * c.args.heads <= 1 << 20 && c.q[1] <= 1 << 24 &&
         c.lengths[0] * c.args.heads * (c.most_queries() / 128 + 1) <= 1 << 30 && c.pages[1] <= 1 << 18 &&
         heads_of(c.q, width).whole_pieces() && heads_of(c.out, width).whole_pieces() && whole(c.k) && whole(c.v);
}

void attend_wgmma(Stream& s, const PagedAttend& c) {
  with_type(c.q.dtype(), [&]<class T>() {
    const auto with = [&]<bool kWindow>() {
      if (c.packed().width() <= 64) start<T, ForwardShape<64, 2, 128, 2, true, 1, true, kWindow>>(s, c);
      else start<T, ForwardShape<128, 2, 128, 2, true, 1, true, kWindow>>(s, c);
    };
    if (c.args.window > 0) with.template operator()<true>();
    else with.template operator()<false>();
  });
}

}  // namespace hpcdl::cuda
