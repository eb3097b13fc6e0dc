#include "hpcdl/parallel/vocabulary.h"

#include <algorithm>
#include <cmath>

#include "hpcdl/core/describe.h"
#include "hpcdl/ops/cross_entropy/cross_entropy.h"
#include "hpcdl/ops/cross_entropy/far_lse.h"
#include "hpcdl/ops/rows.h"

namespace hpcdl::parallel {

VocabularyShare vocabulary_share(std::int64_t vocab, int rank, int ranks) {
  if (vocab < ranks)
    fail_usage("shard", "a vocabulary of {} cannot be spread over {} ranks: use fewer along tp", vocab, ranks);
  constexpr std::int64_t kTile = 64, kTilesPerRank = 16;
  const std::int64_t unit = vocab >= kTile * kTilesPerRank * ranks ? kTile : 1, units = vocab / unit;
  const auto bound = [&](std::int64_t r) { return r == ranks ? vocab : units * r / ranks * unit; };
  return {bound(rank), bound(rank + 1)};
}

// ---------------------------------------------------------------- embedding

void VocabularyEmbedding::forward(Stream& s, Tensor y, View table, View ids, View positions, const Args& a) {
  const View added = a.peers.rank() == 0 ? positions : View();
  on(
      s,
      [&](auto, Pool& pool) {
        cpu::vocabulary_embedding(pool, y, table, ids, added, a.begin, added ? s.params().position : 0);
      },
      [&](auto& q) { cuda::vocabulary_embedding(q, y, table, ids, added, a.begin); });
  if (a.sums) a.peers.all_reduce(s, y);
}

std::array<Spec, 4> VocabularyEmbedding::backward_scratch(const Spec& table, const Spec& ids, const Spec& positions,
                                                          const Args& a) {
  auto list = Embedding::backward_scratch(table, ids, positions, {a.out});
  list[1].shape = {2, ids.size()};
  return list;
}

void VocabularyEmbedding::backward(Stream& s, Grad dtable, Grad dpositions, View ids, View dy, Tensor starts,
                                   Tensor order, Tensor ranks, Tensor parts, const Args& a) {
  const Spec tokens{{ids.size()}, DType::i32};
  const Tensor sorted(order.data(), tokens, order.device()),
      here(order.ptr<std::int32_t>() + ids.size(), ids.spec(), order.device());
  const Columns rows{a.begin, dtable ? dtable[0] : 0, 0};
  on(
      s, [&](auto, Pool&) { cpu::local_ids(here, ids, rows, -1); },
      [&](auto& q) { cuda::local_ids(q, here, ids, rows, -1); });
  Embedding::backward(s, dtable, dpositions, here, dy, starts, sorted, ranks, parts, {a.out});
}

// ---------------------------------------------------------------- logits

namespace {

std::int64_t widest_share(std::int64_t vocab, int ranks) {
  std::int64_t most = 0;
  for (int r = 0; r < ranks; ++r) {
    const auto share = vocabulary_share(vocab, r, ranks);
    most = std::max(most, share.end - share.begin);
  }
  return most;
}

Tensor first_columns(const Tensor& x, std::int64_t begin, std::int64_t count) {
  return Tensor(x.ptr<std::byte>() + begin * dtype_bytes(x.dtype()), {{x.rows(), count}, x.dtype()},
                {x.row_stride(), 1}, x.device());
}

}  // namespace

Spec GatherVocabulary::infer(const Spec& x, const Args& a) {
  const auto is_share = [&](int rank) {
    const auto share = vocabulary_share(a.vocab, rank, a.peers.size());
    return x.shape.rank() >= 1 && x[-1] == share.end - share.begin;
  };
  if (a.peers.at) {
    require(is_share(a.peers.rank()), name, "rank {} of {} has another share of {} words, got {}", a.peers.rank(),
            a.peers.size(), a.vocab, to_string(x));
  } else {  // of a program from a file: any rank's
    int rank = 0;
    while (rank < a.peers.size() && !is_share(rank)) ++rank;
    require(rank < a.peers.size(), name, "no rank of {} has this share of {} words, got {}", a.peers.size(), a.vocab,
            to_string(x));
  }
  Spec y = x;
  y.shape[-1] = a.vocab;
  return y;
}
std::array<Spec, 2> GatherVocabulary::scratch(const Spec& x, const Args& a) {
  const std::int64_t rows = x[-1] ? x.size() / x[-1] : 0, width = widest_share(a.vocab, a.peers.size());
  return {Spec{{rows, width}, x.dtype}, Spec{{a.peers.size(), rows, width}, x.dtype}};
}
void GatherVocabulary::forward(Stream& s, Tensor y, View x, Tensor mine, Tensor parts, const Args& a) {
  static_cast<void>(infer(x.spec(), a));  // a program from a file may be another rank's
  copy_rows(s, first_columns(mine, 0, x.cols()), x);
  a.peers.all_gather(s, parts, mine);
  for (int r = 0; r < a.peers.size(); ++r) {
    const auto share = vocabulary_share(a.vocab, r, a.peers.size());
    const Tensor part(parts.ptr<std::byte>() + r * mine.bytes(), mine.spec(), parts.device());
    copy_rows(s, first_columns(y, share.begin, share.end - share.begin),
              first_columns(part, 0, share.end - share.begin));
  }
}

// ---------------------------------------------------------------- loss

std::array<Spec, 4> VocabularyLoss::scratch(const Spec& h, const Spec& w, const Spec& targets, const Args& a) {
  const auto list = LmHeadLoss::scratch(h, w, targets, local(a));
  return {list[0], list[1], Spec{{3, targets.size()}, DType::f32}, targets};
}

void VocabularyLoss::forward(Stream& s, Tensor loss, Tensor count, Tensor lse, Tensor logits, View h, View w,
                             View targets, Tensor chunk, Tensor stats, Tensor wire, Tensor here, const Args& a) {
  const auto rows = targets.size();
  const Columns columns{a.begin, w[0], a.vocab};
  const auto elsewhere = static_cast<std::int32_t>(w[0]);
  on(
      s, [&](auto, Pool&) { cpu::local_ids(here, targets, columns, elsewhere); },
      [&](auto& q) { cuda::local_ids(q, here, targets, columns, elsewhere); });
  LmHeadLoss::forward(s, loss, count, Tensor(), logits, h, w, here, chunk, stats, local(a));
  const Spec per_row{{rows}, DType::f32};
  const Tensor top(wire.data(), per_row, wire.device()),
      addends(wire.ptr<float>() + rows, {{2, rows}, DType::f32}, wire.device());
  copy(s, top, View(stats.data(), per_row, stats.device()));
  a.peers.all_reduce(s, top, comm::Reduce::max);
  on(
      s, [&](auto, Pool&) { cpu::loss_addends(wire, stats, targets, columns); },
      [&](auto& q) { cuda::loss_addends(q, wire, stats, targets, columns); });
  a.peers.all_reduce(s, addends);
  const View row_loss(stats.ptr<float>() + 3 * rows, per_row, stats.device());
  on(
      s,
      [&](auto isa, Pool&) {
        cpu::loss_of_rows(stats, lse, wire, targets);
        hpcdl::cpu::cross_entropy_sum(isa, loss, count, row_loss, targets);
      },
      [&](auto& q) {
        cuda::loss_of_rows(q, stats, lse, wire, targets);
        hpcdl::cuda::cross_entropy_sum(q, loss, count, row_loss, targets);
      });
}

std::array<Spec, 3> VocabularyLoss::backward_scratch(const Spec& h, const Spec& w, const Spec& targets, const Args& a) {
  const auto list = LmHeadLoss::backward_scratch(h, w, targets, local(a));
  return {list[0], list[1], targets};
}

void VocabularyLoss::backward(Stream& s, Grad dh, Grad dw, View h, View w, View targets, View lse, View logits,
                              View dloss, Tensor chunk, Tensor sum, Tensor here, const Args& a) {
  const Columns columns{a.begin, w[0], a.vocab};
  const auto elsewhere = static_cast<std::int32_t>(w[0]);
  on(
      s, [&](auto, Pool&) { cpu::local_ids(here, targets, columns, elsewhere); },
      [&](auto& q) { cuda::local_ids(q, here, targets, columns, elsewhere); });
  LmHeadLoss::backward(s, dh, dw, h, w, here, lse, logits, dloss, chunk, sum, local(a));
}

// ---------------------------------------------------------------- CPU

namespace cpu {

void vocabulary_embedding(Pool& pool, Tensor y, View table, View ids, View positions, std::int64_t begin,
                          std::int64_t position) {
  const auto n = y.cols(), per = ids[-1];
  const auto* id = ids.ptr<std::int32_t>();
  visit_dtype(y.dtype(), [&]<class Y>() {
    visit_dtype(table.dtype(), [&]<class T>() {
      visit_dtype(positions ? positions.dtype() : DType::f32, [&]<class P>() {
        for_rows(pool, y.rows(), n, [&](std::int64_t first, std::int64_t last) {
          for (auto t = first; t < last; ++t) {
            Y* out = y.ptr<Y>() + t * n;
            const auto row = id[t] - begin, p = t % per + position;
            const T* from = row >= 0 && row < table[0] ? table.ptr<T>() + row * table.row_stride() : nullptr;
            const P* add =
                positions && p >= 0 && p < positions[0] ? positions.ptr<P>() + p * positions.row_stride() : nullptr;
            const bool beyond = positions && !add;  // as Embedding: a position that is not there
            for (std::int64_t i = 0; i < n; ++i)
              out[i] =
                  Y(beyond ? __builtin_nanf("")
                           : (from ? static_cast<float>(from[i]) : 0.0f) + (add ? static_cast<float>(add[i]) : 0.0f));
          }
        });
      });
    });
  });
}

void local_ids(Tensor here, View ids, Columns c, std::int32_t elsewhere) {
  for (std::int64_t i = 0; i < ids.size(); ++i) {
    const std::int64_t id = ids.ptr<std::int32_t>()[i], at = id - c.begin;
    here.ptr<std::int32_t>()[i] = id < 0 ? -1 : at >= 0 && at < c.count ? static_cast<std::int32_t>(at) : elsewhere;
  }
}

void loss_addends(Tensor wire, View stats, View targets, Columns c) {
  const auto rows = targets.size();
  const float *top = stats.ptr<float>(), *sum = top + rows, *at_target = sum + rows;
  const float* all = wire.ptr<float>();
  float *sums = wire.ptr<float>() + rows, *logits = sums + rows;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t t = targets.ptr<std::int32_t>()[r], at = t - c.begin;
    // Where all logits are -inf there is nothing to be relative to.
    sums[r] = sum[r] * (top[r] == all[r] ? 1.0f : std::exp(top[r] - all[r]));
    logits[r] = t >= c.vocab || (at >= 0 && at < c.count) ? at_target[r]
                                                          : 0.0f;  // no rank has a target beyond the vocabulary: NaN
  }
}

void loss_of_rows(Tensor stats, Tensor lse, View wire, View targets) {
  const auto rows = targets.size();
  const float *top = wire.ptr<float>(), *sum = top + rows, *at_target = sum + rows;
  for (std::int64_t r = 0; r < rows; ++r) {
    const float log_sum = std::log(sum[r]);
    if (lse) lse.ptr<float>()[r] = top[r] + log_sum, lse.ptr<float>()[rows + r] = lse_rest(top[r], log_sum);
    stats.ptr<float>()[3 * rows + r] = targets.ptr<std::int32_t>()[r] < 0 ? 0.0f : (top[r] - at_target[r]) + log_sum;
  }
}

}  // namespace cpu
}  // namespace hpcdl::parallel
