#include "hpcdl/ops/vocabulary/vocabulary.h"

#include <cmath>

#include "hpcdl/core/describe.h"
#include "hpcdl/ops/cross_entropy/cross_entropy.h"
#include "hpcdl/ops/cross_entropy/far_lse.h"
#include "hpcdl/ops/rows.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

ColumnShares vocabulary_shares(std::int64_t vocab, int ranks) {
  if (vocab < ranks)
    fail_usage("shard", "a vocabulary of {} cannot be spread over {} ranks: use fewer along tp", vocab, ranks);
  constexpr std::int64_t kTile = 64, kTilesPerRank = 16;
  return {vocab, vocab >= kTile * kTilesPerRank * ranks ? kTile : 1, ranks};
}

// ---------------------------------------------------------------- embedding

void VocabularyEmbedding::forward(Stream& s, Tensor y, View table, View ids, View positions, View places,
                                  const Args& a) {
  const View added = a.positions ? positions : View();
  on(
      s, [&](auto, Pool& pool) { cpu::vocabulary_embedding(pool, y, table, ids, added, places, a.begin); },
      [&](auto& q) { cuda::vocabulary_embedding(q, y, table, ids, added, places, a.begin); });
}

std::array<Spec, 4> VocabularyEmbedding::backward_scratch(const Spec& table, const Spec& ids, const Spec& positions,
                                                          const Spec& places, const Args& a) {
  auto list = Embedding::backward_scratch(table, ids, positions, places, {a.out});
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

// ---------------------------------------------------------------- loss

namespace {

/// The targets relative to the first column of this rank; those of other ranks become the number after its last column.
void count_from_here(Stream& s, const Tensor& here, const View& targets, const Columns& columns) {
  const auto elsewhere = static_cast<std::int32_t>(columns.count);
  on(
      s, [&](auto, Pool&) { cpu::local_ids(here, targets, columns, elsewhere); },
      [&](auto& q) { cuda::local_ids(q, here, targets, columns, elsewhere); });
}

Spec per_row(const Spec& targets) { return {{targets.size()}, DType::f32}; }

}  // namespace

std::array<Spec, 3> VocabularyRows::infer(const Spec& h, const Spec& w, const Spec& targets, const Args& a) {
  const auto whole = LmHeadLoss::infer(h, w, targets, {a.keep_logits});
  return {per_row(targets), Spec{{4, targets.size()}, DType::f32}, whole[3]};
}
std::array<Spec, 3> VocabularyRows::scratch(const Spec& h, const Spec& w, const Spec& targets, const Args& a) {
  return {LmHeadLoss::scratch(h, w, targets, {a.keep_logits})[0], targets, Spec{{2}, DType::f32}};
}
void VocabularyRows::forward(Stream& s, Tensor top, Tensor stats, Tensor logits, View h, View w, View targets,
                             Tensor chunk, Tensor here, Tensor unused, const Args& a) {
  count_from_here(s, here, targets, {a.begin, w[0], a.vocab});
  const Spec one{{1}, DType::f32};
  LmHeadLoss::forward(s, Tensor(unused.data(), one, unused.device()),
                      Tensor(unused.ptr<float>() + 1, one, unused.device()), Tensor(), logits, h, w, here, chunk, stats,
                      {a.keep_logits});
  copy(s, top, View(stats.data(), top.spec(), stats.device()));
}

Spec VocabularyAddends::infer(const Spec& top, const Spec& stats, const Spec& targets, const Args&) {
  require_spec(name, "the largest logits", top, per_row(targets));
  require_spec(name, "statistics", stats, {{4, targets.size()}, DType::f32});
  require(targets.dtype == DType::i32, name, "targets must be I32, got {}", to_string(targets));
  return {{2, targets.size()}, DType::f32};
}
void VocabularyAddends::forward(Stream& s, Tensor addends, View top, View stats, View targets, const Args& a) {
  const Columns columns{a.begin, a.count, a.vocab};
  on(
      s, [&](auto, Pool&) { cpu::loss_addends(addends, top, stats, targets, columns); },
      [&](auto& q) { cuda::loss_addends(q, addends, top, stats, targets, columns); });
}

std::array<Spec, 3> VocabularyLoss::infer(const Spec& h, const Spec& w, const Spec& targets, const Spec& top,
                                          const Spec& addends, const Spec& logits, const Args& a) {
  const auto whole = LmHeadLoss::infer(h, w, targets, {a.keep_logits});
  require_spec(name, "the largest logits", top, per_row(targets));
  require_spec(name, "sums", addends, {{2, targets.size()}, DType::f32});
  require_spec(name, "logits", logits, whole[3]);
  return {whole[0], whole[1], whole[2]};
}
void VocabularyLoss::forward(Stream& s, Tensor loss, Tensor count, Tensor lse, View, View, View targets, View top,
                             View addends, View, Tensor row_loss, const Args&) {
  on(
      s,
      [&](auto isa, Pool&) {
        cpu::loss_of_rows(row_loss, lse, top, addends, targets);
        cpu::cross_entropy_sum(isa, loss, count, row_loss, targets);
      },
      [&](auto& q) {
        cuda::loss_of_rows(q, row_loss, lse, top, addends, targets);
        cuda::cross_entropy_sum(q, loss, count, row_loss, targets);
      });
}

std::array<Spec, 3> VocabularyLoss::backward_scratch(const Spec& h, const Spec& w, const Spec& targets, const Spec&,
                                                     const Spec&, const Spec&, const Args& a) {
  const auto list = LmHeadLoss::backward_scratch(h, w, targets, {a.keep_logits});
  return {list[0], list[1], targets};
}
void VocabularyLoss::backward(Stream& s, Grad dh, Grad dw, View h, View w, View targets, View lse, View logits,
                              View dloss, Tensor chunk, Tensor sum, Tensor here, const Args& a) {
  count_from_here(s, here, targets, {a.begin, w[0], a.vocab});
  LmHeadLoss::backward(s, dh, dw, h, w, here, lse, logits, dloss, chunk, sum, {a.keep_logits});
}

// ---------------------------------------------------------------- CPU

namespace cpu {

void vocabulary_embedding(Pool& pool, Tensor y, View table, View ids, View positions, View places, std::int64_t begin) {
  const auto n = y.cols(), per = ids[-1];
  const auto* id = ids.ptr<std::int32_t>();
  visit_dtype(y.dtype(), [&]<class Y>() {
    visit_dtype(table.dtype(), [&]<class T>() {
      visit_dtype(positions ? positions.dtype() : DType::f32, [&]<class P>() {
        for_rows(pool, y.rows(), n, [&](std::int64_t first, std::int64_t last) {
          for (auto t = first; t < last; ++t) {
            Y* out = y.ptr<Y>() + t * n;
            const auto row = id[t] - begin, p = places ? std::int64_t{places.ptr<std::int32_t>()[t]} : t % per;
            const T* from = row >= 0 && row < table[0] ? table.ptr<T>() + row * table.row_stride() : nullptr;
            const P* add =
                positions && p >= 0 && p < positions[0] ? positions.ptr<P>() + p * positions.row_stride() : nullptr;
            const bool beyond = positions && !add;  // as in Embedding: a position that does not exist
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

void loss_addends(Tensor addends, View tops, View stats, View targets, Columns c) {
  const auto rows = targets.size();
  const float *top = stats.ptr<float>(), *sum = top + rows, *at_target = sum + rows;
  const float* all = tops.ptr<float>();
  float *sums = addends.ptr<float>(), *logits = sums + rows;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t t = targets.ptr<std::int32_t>()[r], at = t - c.begin;
    // If all logits are -inf the sum is not rescaled.
    sums[r] = sum[r] * (top[r] == all[r] ? 1.0f : std::exp(top[r] - all[r]));
    logits[r] = t >= c.vocab || (at >= 0 && at < c.count) ? at_target[r]
                                                          : 0.0f;  // no rank has a target beyond the vocabulary: NaN
  }
}

void loss_of_rows(Tensor row_loss, Tensor lse, View tops, View addends, View targets) {
  const auto rows = targets.size();
  const float *top = tops.ptr<float>(), *sum = addends.ptr<float>(), *at_target = sum + rows;
  for (std::int64_t r = 0; r < rows; ++r) {
    const float log_sum = std::log(sum[r]);
    if (lse) lse.ptr<float>()[r] = top[r] + log_sum, lse.ptr<float>()[rows + r] = lse_rest(top[r], log_sum);
    row_loss.ptr<float>()[r] = targets.ptr<std::int32_t>()[r] < 0 ? 0.0f : (top[r] - at_target[r]) + log_sum;
  }
}

}  // namespace cpu
}  // namespace hpcdl
