#pragma once
// Host code of the Hopper kernels (.cu files): tensor maps, scratch and grids.

#include <algorithm>

#include "hpcdl/cuda/relative_exp.cuh"
#include "hpcdl/cuda/workspace.h"
#include "hpcdl/ops/attention/backward_wgmma.cuh"
#include "hpcdl/ops/attention/forward_wgmma.cuh"

namespace hpcdl::cuda {

template <class T, class Shape> void start_forward(Stream& s, const Attend& c) {
  const auto width = c.width();
  const int heads = c.args.heads, kv_heads = c.kv_heads(), batch = static_cast<int>(c.q[0]),
            queries = static_cast<int>(c.q[1]);
  const ForwardProblem p{.lse = const_cast<float*>(c.lse.ptr<float>()),
                         .batch = batch,
                         .heads = heads,
                         .kv_heads = kv_heads,
                         .queries = queries,
                         .keys = static_cast<int>(c.k[1]),
                         .causal = c.args.causal,
                         .scale = c.scale() * kLog2e,
                         .section = section_of(batch, heads, kv_heads, c.k[1], width),
                         .begins = c.documents.begins.ptr<std::int32_t>()};
  const auto tiles = static_cast<std::int64_t>(batch) * heads * ((queries + Shape::kQueries - 1) / Shape::kQueries);
  const auto blocks = std::min<std::int64_t>(tiles, multiprocessors(s) * Shape::kBlocks);
  constexpr int kBytes = ForwardMemory<Shape>::kBytes;
  allow_shared<attention_forward_wgmma<T, Shape>>(s, kBytes);
  attention_forward_wgmma<T, Shape><<<static_cast<unsigned>(blocks), Shape::kThreads, kBytes, queue(s)>>>(
      head_map(c.q, heads, width, Shape::kQueries), head_map(c.k, kv_heads, width, Shape::kKeys),
      head_map(c.v, kv_heads, width, Shape::kKeys), head_map(c.out, heads, width, 64), p);
  launched("attention");
}

/// Where the parts of backward's scratch begin.
template <class Shape> struct BackwardScratch {
  std::int64_t tiles, rows, counters;
  float *lse, *delta, *tops, *sums;
  unsigned* turns;

  BackwardScratch(const AttendBackward& c)
      : tiles(Shape::tiles(static_cast<int>(c.q[1]))),
        rows(c.q[0] * c.args.heads * tiles * Shape::kQueries),
        counters(c.q[0] * c.args.heads * tiles * 2 + 1) {
    sums = c.scratch.ptr<float>();
    lse = sums + rows * Shape::kWidth;
    delta = lse + rows / Shape::kQueries * Shape::kStatistics;
    tops = delta + rows;
    turns = reinterpret_cast<unsigned*>(tops + rows);
  }
};

/// The number of works into which the query heads of a key/value head are divided: enough for two works per
/// multiprocessor of a large GPU, or one if that alone gives three quarters of them. It does not depend on the actual
/// GPU, because result bits depend on it. H200, us, causal (one work | as here | cuDNN, atomic): 2 x 4096, 14 heads
/// with 2 of keys, 128 wide 1045 | 844 | 689, 64 wide - | 417 | 456, 1 x 4096, 8 with 1, 128 wide 1161 | 227 | 273; 4 x
/// 2048, 32 with 4, 64 wide, which are 256 works: 455 | 482 | 567.
inline int parts_of(const AttendBackward& c, int pieces) {
  constexpr std::int64_t kEnough = 198, kWorks = 264;
  const std::int64_t works = std::int64_t{pieces} * c.kv_heads() * c.q[0], group = c.args.heads / c.kv_heads(),
                     share = 8 * c.k.size(), room = static_cast<std::int64_t>(kWorkspaceBytes);
  if (works >= kEnough) return 1;
  return static_cast<int>(std::max<std::int64_t>(1, std::min({group, (kWorks + works - 1) / works, room / share})));
}

template <class T, class Shape> void start_backward(Stream& s, const AttendBackward& c) {
  const auto width = c.width();
  const int heads = c.args.heads, kv_heads = c.kv_heads(), batch = static_cast<int>(c.q[0]),
            queries = static_cast<int>(c.q[1]), keys = static_cast<int>(c.k[1]);
  const BackwardScratch<Shape> memory(c);
  const int parts = Shape::kParts ? parts_of(c, Shape::pieces(keys)) : 1;
  const auto works = static_cast<std::int64_t>(Shape::pieces(keys)) * kv_heads * parts * batch,
             at_once = std::int64_t{multiprocessors(s)};
  // From the last keys on, pieces hardly wait for turns; from the first on, no long piece remains for the end. H200, us
  // (last, first): 64 x 12 x 1024 x 64 causal 842, 857; 4 x 16 x 4096 x 128 1605, 1558; 1 x 32 x 8192 x 128 with 8
  // key/value heads 4579, 2839. Interleaved heads: as many as occupy the GPU, or a multiple of that.
  const bool ascending = c.args.causal && (Shape::kWidth == 128 || works < 10 * at_once);
  constexpr int kRowsPerBlock = 256 * 8 / Shape::kWidth;
  const auto begin = [&]<class Problem>(const Problem& p) {
    attention_backward_begin<T, Shape><<<blocks_for(memory.rows, kRowsPerBlock), 256, 0, queue(s)>>>(
        p, memory.lse, memory.delta, memory.tops, memory.turns, static_cast<int>(memory.counters),
        static_cast<int>(memory.rows), ascending);
  };
  if constexpr (Shape::kDocuments) begin(InDocuments<AttentionProblem>(problem_of(c), c.documents));
  else begin(problem_of(c));
  launched("attention_backward");
  const std::int64_t times = Shape::kWidth == 64 ? (ascending ? 4 : 2)
                             : ascending         ? 2
                                                 : 1,
                     section = times * at_once / Shape::pieces(keys);
  const BackwardProblem p{
      .dq = heads_of(c.dq, width),
      .dk = heads_of(c.dk, width),
      .dv = heads_of(c.dv, width),
      .lse = memory.lse,
      .delta = memory.delta,
      .tops = memory.tops,
      .sums = memory.sums,
      .turns = memory.turns,
      .ticket = memory.turns + memory.counters - 1,
      .batch = batch,
      .heads = heads,
      .kv_heads = kv_heads,
      .queries = queries,
      .keys = keys,
      .width = static_cast<int>(width),
      .causal = c.args.causal,
      .scale = c.scale(),
      .ascending = ascending,
      .section = static_cast<int>(std::clamp<std::int64_t>(section, 1, std::int64_t{batch} * kv_heads * parts)),
      .parts = parts,
      .shares = parts > 1 ? static_cast<float*>(workspace(s)) : nullptr,
      .ends = c.documents.ends.ptr<std::int32_t>()};
  constexpr int kBytes = BackwardMemory<Shape>::kBytes;
  allow_shared<attention_backward_wgmma<T, Shape>>(s, kBytes);
  attention_backward_wgmma<T, Shape>
      <<<static_cast<unsigned>(std::min(works, at_once)), Shape::kThreads, kBytes, queue(s)>>>(
          head_map(c.q, heads, width, Shape::kQueries), head_map(c.k, kv_heads, width, Shape::kKeys),
          head_map(c.v, kv_heads, width, Shape::kKeys), head_map(c.dout, heads, width, Shape::kQueries), p);
  launched("attention_backward");
  if constexpr (!Shape::kParts) return;
  attention_backward_add<T>
      <<<dim3(blocks_for(batch * std::int64_t{keys} * kv_heads * width / 4, 256), 2), 256, 0, queue(s)>>>(p);
  launched("attention_backward");
}

/// The shape for the width and the heads of the call.
template <class T, bool kDocuments> void start_backward_of(Stream& s, const AttendBackward& c) {
  const auto start = [&]<bool kParts>() {
    if (c.width() <= 64) start_backward<T, BackwardShape<64, 128, 2, 2, kParts, kDocuments>>(s, c);
    else start_backward<T, BackwardShape<128, 64, 3, 2, kParts, kDocuments>>(s, c);
  };
  if (parts_of(c, BackwardShape<64, 128, 2, 2>::pieces(static_cast<int>(c.k[1]))) > 1)
    start.template operator()<true>();
  else start.template operator()<false>();
}

/// With documents: wgmma_documents.cu.
void attend_documents_wgmma(Stream& s, const Attend& c, int shape);
void attend_backward_documents_wgmma(Stream& s, const AttendBackward& c);

}  // namespace hpcdl::cuda
