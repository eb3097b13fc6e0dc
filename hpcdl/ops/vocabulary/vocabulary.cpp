#include "hpcdl/ops/vocabulary/vocabulary.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "hpcdl/core/describe.h"
#include "hpcdl/ops/cross_entropy/cross_entropy.h"
#include "hpcdl/ops/cross_entropy/far_lse.h"
#include "hpcdl/ops/rows.h"
#include "hpcdl/program/check.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

ColumnShares vocabulary_shares(std::int64_t vocab, int ranks) {
  if (vocab < ranks)
    fail_usage("shard",
               "a vocabulary of {} cannot be divided among {} ranks: use fewer along tp, or along pp if "
               "parallel.vocabulary = \"pipeline\"",
               vocab, ranks);
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

std::array<Spec, 2> VocabularyMerge::infer(const Spec& stats, const Spec& targets, const Args& a) {
  require_spec(name, "statistics", stats, {{std::int64_t{4} * a.ranks, targets.size()}, DType::f32});
  require(targets.dtype == DType::i32, name, "targets must be I32, got {}", to_string(targets));
  return {per_row(targets), Spec{{2, targets.size()}, DType::f32}};
}
void VocabularyMerge::forward(Stream& s, Tensor top, Tensor sums, View stats, View targets, const Args& a) {
  on(s, [&](auto, Pool&) { cpu::merge_rows(top, sums, stats, targets, a); });
}

std::array<Spec, 3> VocabularySummands::infer(const Spec& h, const Spec& w, const Spec& targets, const Args& a) {
  const auto rows = VocabularyRows::infer(h, w, targets, a);
  return {rows[1], rows[2], Spec{{2, targets.size(), w[1]}, h.dtype}};
}
Cost VocabularySummands::cost(const Spec& h, const Spec& w, const Spec& targets, const Args& a) {
  Cost c = LmHeadLoss::cost(h, w, targets, {a.keep_logits});
  c.operations *= a.keep_logits ? 2 : 3;
  return c;
}
std::array<Spec, 4> VocabularySummands::scratch(const Spec& h, const Spec& w, const Spec& targets, const Args& a) {
  const auto rows = VocabularyRows::scratch(h, w, targets, a);
  const auto back = LmHeadLoss::backward_scratch(h, w, targets, {a.keep_logits});
  return {rows[0], rows[1], Spec{{4 * targets.size() + 3}, DType::f32}, back[1]};
}
void VocabularySummands::forward(Stream& s, Tensor stats, Tensor logits, Tensor summands, View h, View w, View targets,
                                 Tensor chunk, Tensor here, Tensor numbers, Tensor sum, const Args& a) {
  s.require_cpu();
  const auto rows = targets.size();
  float* at = numbers.ptr<float>();
  const auto next = [&](const Shape& shape) {
    const Tensor t(at, {shape, DType::f32});
    at += shape.size();
    return t;
  };
  const Tensor top = next({rows}), row_loss = next({rows}), lse = next({2, rows}), unused = next({2}), one = next({1});
  VocabularyRows::forward(s, top, stats, logits, h, w, targets, chunk, here, unused, a);
  const View known(stats.ptr<float>() + rows, {{2, rows}, DType::f32});  // sums, and logits of targets
  cpu::loss_of_rows(row_loss, lse, top, known, targets);
  // Targets are left out, except for those that are ignored.
  cpu::local_ids(here, targets, {a.vocab, 0, 0}, static_cast<std::int32_t>(w[0]));
  *one.ptr<float>() = 1;
  const Tensor mean(summands.data(), h.spec()), hot(summands.ptr<std::byte>() + mean.bytes(), h.spec());
  LmHeadLoss::backward(s, Grad(mean, Write::overwrite), Grad(), h, w, here, lse, logits, one, chunk, sum,
                       {a.keep_logits});
  cpu::vocabulary_embedding(s.pool(), Tensor(hot.data(), {{rows, w[1]}, h.dtype()}), w,
                            View(targets.data(), {{rows}, DType::i32}), View(), View(), a.begin);
}

std::array<Spec, 3> VocabularyValue::infer(const Spec& targets, const Spec& top, const Spec& sums, const Args&) {
  const Spec one{{1}, DType::f32};
  require_spec(name, "the largest logits", top, per_row(targets));
  require_spec(name, "sums", sums, {{2, targets.size()}, DType::f32});
  require(targets.dtype == DType::i32, name, "targets must be I32, got {}", to_string(targets));
  return {one, one, sums};
}
void VocabularyValue::forward(Stream& s, Tensor loss, Tensor count, Tensor lse, View targets, View top, View sums,
                              Tensor row_loss, const Args&) {
  on(s, [&](auto isa, Pool&) {
    cpu::loss_of_rows(row_loss, lse, top, sums, targets);
    cpu::cross_entropy_sum(isa, loss, count, row_loss, targets);
  });
}

void VocabularyMergeGradient::check_record(const RawRecord& r) {
  r.require_count(4);
  const Spec dh = require_float(name, r.contiguous(0), "gradient"), stats = r.contiguous(1), summands = r.contiguous(2);
  const auto rows = dh.size() / std::max<std::int64_t>(1, dh[-1]);
  require(stats.dtype == DType::f32 && stats.shape.rank() == 2 && stats[0] % 4 == 0 && stats[0] > 0 && stats[1] == rows,
          name, "statistics must be F32 (4 p, {}), got {}", rows, to_string(stats));
  require_spec(name, "summands", summands, {{stats[0] / 4 * 2 * dh.size()}, dh.dtype});
  require_spec(name, "dloss", r.contiguous(3), {{1}, DType::f32});
}
void VocabularyMergeGradient::run(Stream& s, const Grad* t, const void*) {
  on(s, [&](auto, Pool& pool) { cpu::merge_gradients(pool, t[0], t[1], t[2], *t[3].ptr<float>()); });
}

void VocabularyWeightGradient::check_record(const RawRecord& r) {
  r.require_count(10);
  const auto& a = r.args<RecordArgs>();
  const Spec dw = r.contiguous(0), h = r.contiguous(1), w = r.contiguous(2), targets = r.contiguous(3);
  require_spec(name, "the gradient of the weights", dw, {w.shape, dw.dtype});
  const auto outs = VocabularyRows::infer(h, w, targets, a);
  require_spec(name, "lse", r.contiguous(4), {{2, targets.size()}, DType::f32});
  require_spec(name, "logits", r.contiguous(5), outs[2]);
  require_spec(name, "dloss", r.contiguous(6), {{1}, DType::f32});
  const auto scratch = LmHeadLoss::backward_scratch(h, w, targets, {a.keep_logits});
  require_spec(name, "its first scratch", r.contiguous(7), scratch[0]);
  require_spec(name, "its second scratch", r.contiguous(8), scratch[1]);
  require_spec(name, "its third scratch", r.contiguous(9), targets);
}
void VocabularyWeightGradient::run(Stream& s, const Grad* t, const void* args) {
  const auto& a = *static_cast<const RecordArgs*>(args);
  count_from_here(s, t[9], t[3], {a.begin, t[2][0], a.vocab});
  LmHeadLoss::backward(s, Grad(), t[0], t[1], t[2], t[9], t[4], t[5], t[6], t[7], t[8], {a.keep_logits});
}

Spec VocabularyLateLoss::infer(const Spec& loss, const Spec& h, const Spec& w, const Spec& targets, const Spec& lse,
                               const Spec& logits, const Spec& stats, const Spec& summands, const Args& a) {
  require_spec(name, "loss", loss, {{1}, DType::f32});
  require_spec(name, "logits", logits, VocabularyRows::infer(h, w, targets, a)[2]);
  require_spec(name, "lse", lse, {{2, targets.size()}, DType::f32});
  require(stats.shape.rank() == 2 && stats[0] % 4 == 0 && stats[1] == targets.size(), name,
          "statistics must be (4 p, {}), got {}", targets.size(), to_string(stats));
  require_spec(name, "summands", summands, {{stats[0] / 4 * 2 * h.size()}, h.dtype});
  return loss;
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

void merge_rows(Tensor tops, Tensor sums, View stats, View targets, const VocabularyMerge::Args& a) {
  const auto rows = targets.size();
  const auto shares = vocabulary_shares(a.vocab, a.ranks);
  const auto of_rank = [&](int rank) { return stats.ptr<float>() + std::int64_t{4} * rank * rows; };
  for (std::int64_t r = 0; r < rows; ++r) {
    float top = of_rank(0)[r];
    for (int rank = 1; rank < a.ranks; ++rank)
      if (of_rank(rank)[r] > top || std::isnan(of_rank(rank)[r])) top = of_rank(rank)[r];
    const std::int64_t target = targets.ptr<std::int32_t>()[r];
    float sum = 0, at_target = target >= a.vocab ? __builtin_nanf("") : 0.0f;  // no rank has such a target
    for (int rank = 0; rank < a.ranks; ++rank) {
      const float *mine = of_rank(rank), *its_sum = mine + rows, *its_target = its_sum + rows;
      // If all logits are -inf the sum is not rescaled.
      sum += its_sum[r] * (mine[r] == top ? 1.0f : std::exp(mine[r] - top));
      if (target >= shares.begin(rank) && target < shares.begin(rank + 1)) at_target = its_target[r];
    }
    tops.ptr<float>()[r] = top;
    sums.ptr<float>()[r] = sum, sums.ptr<float>()[rows + r] = at_target;
  }
}

void merge_gradients(Pool& pool, Grad dh, View stats, View summands, float dloss) {
  const auto rows = dh.rows(), n = dh.cols(), ranks = stats[0] / 4;
  visit_dtype(dh.dtype(), [&]<class T>() {
    for_rows(pool, rows, ranks * n, [&](std::int64_t first, std::int64_t last) {
      std::vector<float> sum(static_cast<std::size_t>(n));
      for (auto r = first; r < last; ++r) {
        const auto stat = [&](std::int64_t rank, int which) {
          return stats.ptr<float>()[(4 * rank + which) * rows + r];
        };
        float top = stat(0, 0), all = 0;
        for (std::int64_t rank = 1; rank < ranks; ++rank) top = stat(rank, 0) > top ? stat(rank, 0) : top;
        const auto weight = [&](std::int64_t rank) {
          return stat(rank, 1) * (stat(rank, 0) == top ? 1.0f : std::exp(stat(rank, 0) - top));
        };
        for (std::int64_t rank = 0; rank < ranks; ++rank) all += weight(rank);
        std::fill(sum.begin(), sum.end(), 0.0f);
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          const float share = weight(rank) / all;
          const T *mean = summands.ptr<T>() + (2 * rank * rows + r) * n, *hot = mean + rows * n;
          for (std::int64_t i = 0; i < n; ++i)
            sum[static_cast<std::size_t>(i)] += share * static_cast<float>(mean[i]) - static_cast<float>(hot[i]);
        }
        T* to = dh.ptr<T>() + r * n;
        for (std::int64_t i = 0; i < n; ++i) {
          const float d = dloss * sum[static_cast<std::size_t>(i)];
          to[i] = T(dh.accumulate() ? static_cast<float>(to[i]) + d : d);
        }
      }
    });
  });
}

}  // namespace cpu
}  // namespace hpcdl
