#include "hpcdl/ops/attention/decode.cuh"
#include "hpcdl/ops/attention/rows_alone.h"

// One query per sequence, of elements that are f32, bf16 or f16.

namespace hpcdl::cuda {
namespace {

using namespace decoding;

/// Block (query head, sequence), one thread per element. `scale` applies to the tops.
__global__ void join_splits(const __grid_constant__ Decode p, int width, float scale) {
  __shared__ float tops[Attention::kMaxSplits], weights[Attention::kMaxSplits];
  let_next_begin();
  const int h = static_cast<int>(blockIdx.x), b = static_cast<int>(blockIdx.y), d = static_cast<int>(threadIdx.x),
            row = p.row(b);
  await_previous();
  const std::int64_t head = static_cast<std::int64_t>(b) * p.heads + h;
  const float* from = p.parts + head * p.splits * (width + 2);
  for (int i = d; i < p.splits; i += width)
    weights[i] = from[i * (width + 2) + width], tops[i] = from[i * (width + 2) + width + 1];
  __syncthreads();
  float top = -__builtin_inff(), sum = 0, out = 0;
  for (int i = 0; i < p.splits; ++i) top = fmaxf(top, tops[i]);
#pragma unroll 8
  for (int i = 0; i < p.splits; ++i) {
    const float weight = exp2f(exponent_between(tops[i], top, scale));
    sum = ::fmaf(weight, weights[i], sum);
    out = ::fmaf(weight, from[i * (width + 2) + d], out);
  }
  p.out.put(p.at(p.out, row, h) + d, out / sum);
  if (p.lse && d == 0) p.lse[head] = (__fmul_rn(top, scale) + log2f(sum)) / kLog2e;
}

template <class K, int kShare, int kPacks> void start(Stream& s, const Decode& p, int batch) {
  const int group = p.heads / p.kv_heads;
  const bool whole = p.width % kLanes<K> == 0 && p.k.whole_pieces() && p.v.whole_pieces();
  if (!whole) return start<K, kShare, kPacks, 1, false>(s, p, batch);
  if constexpr (kPacks == 1) {
    if (group % 4 == 0) return start<K, kShare, kPacks, 4, true>(s, p, batch);
    if (group % 3 == 0) return start<K, kShare, kPacks, 3, true>(s, p, batch);
  }
  if (group % 2 == 0) start<K, kShare, kPacks, 2, true>(s, p, batch);
  else start<K, kShare, kPacks, 1, true>(s, p, batch);
}
template <class K> void start(Stream& s, const Decode& p, int batch) {
  const int packs = (p.width + kLanes<K> - 1) / kLanes<K>;
  if (packs <= 8) start<K, 8, 1>(s, p, batch);
  else if (packs <= 16) start<K, 16, 1>(s, p, batch);
  else if (packs <= 32) start<K, 32, 1>(s, p, batch);
  else start<K, 32, 2>(s, p, batch);
}

bool try_mma(Stream& s, const Decode& p, int batch) {
  if (p.q.dtype != p.k.dtype) return false;
  if (p.q.dtype == DType::bf16) return start_mma<bf16, bf16>(s, p, batch);
  return p.q.dtype == DType::f16 && start_mma<f16, f16>(s, p, batch);
}

}  // namespace

bool decode_fits(const Attend& c) {
  return c.q[1] == 1 && c.q[0] < 65536 && c.width() * dtype_bytes(c.k.dtype()) <= 1024;
}

namespace {

void start(Stream& s, Decode p, int batch, const char* name) {
  // A second kernel costs some microseconds; but clusters of several blocks a multiprocessor do not all run at once. 8 x
  // 8 heads of 128, 32768 keys, bf16: 421 us by clusters, whose reads take 224.
  constexpr int kShort = 1024;
  const bool fills = p.splits * p.kv_heads * batch > multiprocessors(s);
  p.cluster = p.splits > 1 && p.splits <= kMostBlocks && has_clusters(s) && (!fills || p.capacity <= kShort);
  const bool codes = has_scales(p.k.dtype);
  const bool scaled = codes ? start_codes(s, p, batch) : !try_mma(s, p, batch);
  if (!codes && scaled) visit_dtype(p.k.dtype, [&]<class K>() { start<K>(s, p, batch); });
  if (p.splits == 1 || p.cluster) return;
  launch_overlapped(
      queue(s), overlaps(s, batch), join_splits,
      {.grid = {static_cast<unsigned>(p.heads), static_cast<unsigned>(batch)}, .block = static_cast<unsigned>(p.width)},
      name, p, p.width, scaled ? 1.0f : p.scale);
}

PagedHeads without_pages(const View& x, std::int64_t width) {
  PagedHeads h;
  static_cast<Heads&>(h) = heads_of(x, width);
  return h;
}

}  // namespace

void attend_decode(Stream& s, const Attend& c) {
  const auto width = c.width();
  const Decode p{.q = heads_of(c.q, width),
                 .out = heads_of(c.out, width),
                 .k = without_pages(c.k, width),
                 .v = without_pages(c.v, width),
                 .lse = const_cast<float*>(c.lse.ptr<float>()),
                 .parts = c.scratch.ptr<float>(),
                 .heads = c.args.heads,
                 .kv_heads = c.kv_heads(),
                 .capacity = static_cast<int>(c.k[1]),
                 .splits = static_cast<int>(Attention::splits(c.q.spec(), c.k.spec(), c.args)),
                 .width = static_cast<int>(width),
                 .scale = c.scale() * kLog2e,
                 .window = static_cast<int>(c.args.window),
                 .cap = c.args.cap * kLog2e};
  start(s, p, static_cast<int>(c.q[0]), "attention");
}

namespace {

/// Of queries in pages, without a division of keys.
Decode paged_problem(const PagedAttend& c) {
  const auto one = c.packed();
  const auto width = one.width();
  return {.q = heads_of(c.q, width),
          .out = heads_of(c.out, width),
          .k = PagedHeads(c.k, c.pages),
          .v = PagedHeads(c.v, c.pages),
          .parts = c.scratch.ptr<float>(),
          .starts = c.starts.ptr<std::int32_t>(),
          .lengths = c.lengths.ptr<std::int32_t>(),
          .heads = c.args.heads,
          .kv_heads = one.kv_heads(),
          .capacity = static_cast<int>(c.pages[1] * kPageTokens),
          .width = static_cast<int>(width),
          .scale = one.scale() * kLog2e,
          .window = c.args.window,
          .cap = c.args.cap * kLog2e};
}

}  // namespace

void attend_decode(Stream& s, const PagedAttend& c) {
  Decode p = paged_problem(c);
  if (c.scratch.rank() == 4) p.splits = static_cast<int>(c.scratch[2]);
  start(s, p, static_cast<int>(c.lengths[0]), "paged_attention");
}

void attend_rows_alone(Stream& s, const PagedAttend& c) {
  Decode p = paged_problem(c);
  p.sequences = static_cast<int>(c.lengths[0]);
  start(s, p, static_cast<int>(c.q[1]), "paged_attention");
}

}  // namespace hpcdl::cuda
