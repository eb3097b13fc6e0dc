#pragma once
// The first and the last layer of a language model with the vocabulary distributed over the ranks: rank r holds rows
// [begin, begin + V_r) of the table, and every row is on one rank. The numbers of rows may differ: nothing here is
// gathered by rows.
//
// Source: Shoeybi et al., "Megatron-LM", 2019, section 3.

#include "hpcdl/ops/embedding/embedding.h"
#include "hpcdl/ops/exchange/exchange.h"
#include "hpcdl/ops/lm_head_loss/lm_head_loss.h"

namespace hpcdl {

/// The shares of a vocabulary: they differ by one row or, in vocabularies so large that this costs little balance, by
/// 64 rows, which suits products on a GPU. Throws UsageError if there are more ranks than rows.
ColumnShares vocabulary_shares(std::int64_t vocab, int ranks);

/// Embedding (ops/embedding) of the rows that this rank has: zeros for ids of other ranks, so that the result is a
/// summand. The gradients of the rank's rows and of the positions follow from dy, which every rank has. Ids that no
/// rank has give zeros (rows of NaN on one rank): the data loader rejects them beforehand.
struct VocabularyEmbedding {
  static constexpr std::string_view name = "vocabulary_embedding";
  static constexpr bool kGathers = true;
  struct Args {
    DType out = DType::none;
    std::int64_t begin = 0;
    bool positions = true;  // adds them: one rank does
  };
  static Spec infer(const Spec& table, const Spec& ids, const Spec& positions, const Spec& places, const Args& a) {
    return Embedding::infer(table, ids, positions, places, {a.out});
  }
  /// How many of this rank's rows are read depends on the ids: at least none.
  static Cost cost(const Spec& table, const Spec& ids, const Spec& positions, const Spec&, const Args&) {
    return Embedding::rows_apart(table, ids, positions);
  }
  static void forward(Stream& s, Tensor y, View table, View ids, View positions, View places, const Args& a);
  /// The scratch of Embedding; after the sorted tokens, the ids relative to the rank's first row.
  static std::array<Spec, 4> backward_scratch(const Spec& table, const Spec& ids, const Spec& positions,
                                              const Spec& places, const Args& a);
  static void backward(Stream& s, Grad dtable, Grad dpositions, View ids, View dy, Tensor starts, Tensor order,
                       Tensor ranks, Tensor parts, const Args& a);
  using Backward = Operands<dIn<0>, dIn<2>, In<1>, dOut<0>, Scratch<0>, Scratch<1>, Scratch<2>, Scratch<3>>;
};

// lm_head_loss (ops/lm_head_loss) of logits that are distributed over the ranks by columns, as three ops with exchanges
// between them; w holds the rank's V_r rows. Three numbers per row of h are exchanged: the largest logit, the sum of
// exponentials and the logit of the target.

/// A rank's results for each row: the largest logit; (4, rows) with that, the sum of exponentials, the logit of the
/// target and working memory; the logits, empty unless they are kept.
struct VocabularyRows {
  static constexpr std::string_view name = "vocabulary_rows";
  struct Args {
    bool keep_logits = false;
    std::int64_t begin = 0, vocab = 0;  // over all ranks
  };
  static std::array<Spec, 3> infer(const Spec& h, const Spec& w, const Spec& targets, const Args& a);
  static Cost cost(const Spec& h, const Spec& w, const Spec& targets, const Args& a) {
    return LmHeadLoss::cost(h, w, targets, {a.keep_logits});
  }
  /// A chunk of logits, the targets relative to the rank's first column, loss and count of these.
  static std::array<Spec, 3> scratch(const Spec& h, const Spec& w, const Spec& targets, const Args& a);
  static void forward(Stream& s, Tensor top, Tensor stats, Tensor logits, View h, View w, View targets, Tensor chunk,
                      Tensor here, Tensor unused, const Args& a);
};

/// (2, rows): sum and logit of the target as summands for the sum over the ranks, given the largest logit of all ranks.
struct VocabularyAddends {
  static constexpr std::string_view name = "vocabulary_addends";
  struct Args {
    std::int64_t begin = 0, count = 0, vocab = 0;
  };
  static Spec infer(const Spec& top, const Spec& stats, const Spec& targets, const Args& a);
  /// Reads three of the rank's four numbers per row: the largest logit, the sum and the logit of the target.
  static Cost cost(const Spec& top, const Spec&, const Spec&, const Args&) {
    return {.reads = -static_cast<double>(top.bytes())};
  }
  static void forward(Stream& s, Tensor addends, View top, View stats, View targets, const Args& a);
};

/// Loss and count over the whole vocabulary on every rank. Owns the gradient of all three ops: dh is the rank's
/// summand.
struct VocabularyLoss {
  static constexpr std::string_view name = "vocabulary_loss";
  static constexpr int kAux = 1;
  using Args = VocabularyRows::Args;
  static std::array<Spec, 3> infer(const Spec& h, const Spec& w, const Spec& targets, const Spec& top,
                                   const Spec& addends, const Spec& logits, const Args& a);
  /// Only backward reads h, w and the logits.
  static Cost cost(const Spec& h, const Spec& w, const Spec&, const Spec&, const Spec&, const Spec& logits,
                   const Args&) {
    return {.reads = -static_cast<double>(h.bytes() + w.bytes() + logits.bytes())};
  }
  static Cost backward_cost(const Spec& h, const Spec& w, const Spec& targets, const Spec&, const Spec&, const Spec&,
                            const Args& a) {
    return LmHeadLoss::backward_cost(h, w, targets, {a.keep_logits});
  }
  /// The loss of each row.
  static std::array<Spec, 1> scratch(const Spec&, const Spec&, const Spec&, const Spec& top, const Spec&, const Spec&,
                                     const Args&) {
    return {top};
  }
  static void forward(Stream& s, Tensor loss, Tensor count, Tensor lse, View h, View w, View targets, View top,
                      View addends, View logits, Tensor row_loss, const Args& a);
  static std::array<Spec, 3> backward_scratch(const Spec& h, const Spec& w, const Spec& targets, const Spec&,
                                              const Spec&, const Spec&, const Args& a);
  static void backward(Stream& s, Grad dh, Grad dw, View h, View w, View targets, View lse, View logits, View dloss,
                       Tensor chunk, Tensor sum, Tensor here, const Args& a);
  using Backward =
      Operands<dIn<0>, dIn<1>, In<0>, In<1>, In<2>, Out<2>, In<5>, dOut<0>, Scratch<0>, Scratch<1>, Scratch<2>>;
};

/// What VocabularyLoss needs of all ranks, from their statistics: (4 p, rows), one rank after the other. Gives the largest
/// logit, and (2, rows) with the sum of exponentials and the logit of the target. For CPUs.
struct VocabularyMerge {
  static constexpr std::string_view name = "vocabulary_merge";
  struct Args {
    std::int64_t vocab = 0;  // over all ranks
    int ranks = 1;
    bool valid() const { return vocab >= ranks && ranks >= 1 && ranks <= 1 << 20; }
  };
  static std::array<Spec, 2> infer(const Spec& stats, const Spec& targets, const Args& a);
  static Cost cost(const Spec& stats, const Spec&, const Args&) {
    return {.operations = static_cast<double>(stats.size())};
  }
  static void forward(Stream& s, Tensor top, Tensor sums, View stats, View targets, const Args& a);
};

// The same for ranks that exchange everything at once, for CPUs: a rank computes its part of the gradient of h before it
// knows the logits of the others, as if there were none, and what it then knows of them scales that.

/// VocabularyRows without the largest logits, and (2, rows, C) in the type of h: the sums of the rows of w, weighted by
/// the probabilities among the rank's columns, and the row of the target; zeros where that belongs to another rank or
/// is ignored.
struct VocabularySummands {
  static constexpr std::string_view name = "vocabulary_summands";
  using Args = VocabularyRows::Args;
  static std::array<Spec, 3> infer(const Spec& h, const Spec& w, const Spec& targets, const Args& a);
  static Cost cost(const Spec& h, const Spec& w, const Spec& targets, const Args& a);
  /// A chunk of logits and the targets here, as for VocabularyRows; four numbers for each row and three others; and what
  /// LmHeadLoss::backward() sums in f32.
  static std::array<Spec, 4> scratch(const Spec& h, const Spec& w, const Spec& targets, const Args& a);
  static void forward(Stream& s, Tensor stats, Tensor logits, Tensor summands, View h, View w, View targets,
                      Tensor chunk, Tensor here, Tensor numbers, Tensor sum, const Args& a);
};

/// Loss, count and lse (2, rows) of what VocabularyMerge gives.
struct VocabularyValue {
  static constexpr std::string_view name = "vocabulary_value";
  struct Args {};
  static std::array<Spec, 3> infer(const Spec& targets, const Spec& top, const Spec& sums, const Args&);
  static std::array<Spec, 1> scratch(const Spec&, const Spec& top, const Spec&, const Args&) { return {top}; }
  static void forward(Stream& s, Tensor loss, Tensor count, Tensor lse, View targets, View top, View sums,
                      Tensor row_loss, const Args&);
};

/// A raw record: dh (+)= dloss times the gradient of h, from the statistics of all ranks, (4 p, rows), and their summands,
/// one rank after the other. Operands: dh, statistics, summands, dloss.
struct VocabularyMergeGradient {
  static constexpr std::string_view name = "vocabulary_merge_gradient";
  static void check_record(const RawRecord& r);
  static void run(Stream& s, const Grad* t, const void*);
};

/// A raw record: the gradient of w in VocabularyLoss::backward(). Operands: dw, h, w, targets, lse, logits, dloss, and its
/// scratch.
struct VocabularyWeightGradient {
  static constexpr std::string_view name = "vocabulary_weight_gradient";
  using RecordArgs = VocabularyRows::Args;
  static void check_record(const RawRecord& r);
  static void run(Stream& s, const Grad* t, const void* args);
};

/// The gradient rule: `loss` is what records have made of the others.
struct VocabularyLateLoss {
  static constexpr std::string_view name = "vocabulary_late_loss";
  using Args = VocabularyRows::Args;
  static Spec infer(const Spec& loss, const Spec& h, const Spec& w, const Spec& targets, const Spec& lse,
                    const Spec& logits, const Spec& stats, const Spec& summands, const Args& a);
  static std::array<Spec, 3> backward_scratch(const Spec&, const Spec& h, const Spec& w, const Spec& targets,
                                              const Spec&, const Spec&, const Spec&, const Spec&, const Args& a) {
    const auto list = LmHeadLoss::backward_scratch(h, w, targets, {a.keep_logits});
    return {list[0], list[1], targets};
  }
  template <class G> static void record_backward(G& g, std::span<const Operand> o, const Args& a) {
    if (o[0].slot >= 0) {
      const Operand merged[] = {o[0], o[7], o[8], o[9]};
      g.template emit<VocabularyMergeGradient>(merged, nullptr, 0, {}, Phase::backward);
    }
    if (o[1].slot < 0) return;
    std::vector<Operand> weights{o[1]};
    weights.insert(weights.end(), {o[2], o[3], o[4], o[5], o[6], o[9], o[10], o[11], o[12]});
    Cost cost = LmHeadLoss::cost(o[2].spec, o[3].spec, o[4].spec, {a.keep_logits});
    cost.operations *= a.keep_logits ? 1 : 2;
    g.template emit<VocabularyWeightGradient>(weights, &a, sizeof a, cost, Phase::backward);
  }
  using Backward = Operands<dIn<1>, dIn<2>, In<1>, In<2>, In<3>, In<4>, In<5>, In<6>, In<7>, dOut<0>, Scratch<0>,
                            Scratch<1>, Scratch<2>>;
};

/// The columns of the vocabulary that a rank has, and their total number.
struct Columns {
  std::int64_t begin, count, vocab;
};

namespace cpu {
void vocabulary_embedding(Pool&, Tensor y, View table, View ids, View positions, View places, std::int64_t begin);
/// here[i] = ids[i] - begin; -1 if ids[i] < 0, `elsewhere` if that row belongs to another rank.
void local_ids(Tensor here, View ids, Columns c, std::int32_t elsewhere);
/// See VocabularyAddends.
void loss_addends(Tensor addends, View top, View stats, View targets, Columns c);
/// Computes lse, which may be absent, and the loss of each row from the sums over all ranks.
void loss_of_rows(Tensor row_loss, Tensor lse, View top, View addends, View targets);
/// See VocabularyMerge.
void merge_rows(Tensor top, Tensor sums, View stats, View targets, const VocabularyMerge::Args& a);
/// See VocabularyMergeGradient.
void merge_gradients(Pool&, Grad dh, View stats, View summands, float dloss);
}  // namespace cpu
namespace cuda {
void vocabulary_embedding(Stream&, Tensor y, View table, View ids, View positions, View places, std::int64_t begin);
void local_ids(Stream&, Tensor here, View ids, Columns c, std::int32_t elsewhere);
void loss_addends(Stream&, Tensor addends, View top, View stats, View targets, Columns c);
void loss_of_rows(Stream&, Tensor row_loss, Tensor lse, View top, View addends, View targets);
}  // namespace cuda

template <Symbolic V>
V vocabulary_embedding(const V& table, const V& ids, const V& positions, const VocabularyEmbedding::Args& a,
                       const V& places = {}) {
  if (places) require_no_gradient(VocabularyEmbedding::name, table);
  return record<VocabularyEmbedding>(a, table, ids, positions, places);
}
/// Records the sum of the losses. Logits are kept only for a backward pass.
template <Symbolic V>
V vocabulary_loss(const V& h, const V& w, const V& targets, VocabularyRows::Args a, const Axis& axis) {
  a.keep_logits = a.keep_logits && (h.graph().wants_gradient(h) || h.graph().wants_gradient(w));
  const auto [top, stats, logits] = record<VocabularyRows>(a, h, w, targets);
  const V all = all_maximum(top, axis);
  const V sums = leave(record<VocabularyAddends>({a.begin, w[0], a.vocab}, all, stats, targets), axis);
  return record<VocabularyLoss>(a, h, w, targets, all, sums, logits)[0];
}

/// The same in two passes of each rank, with one exchange between them and one after the second, of the gradient of h:
/// what a pipeline needs, in which h comes from one rank and its gradient goes there. Source: Yeung et al., "Balancing
/// Pipeline Parallelism with Vocabulary Parallelism", 2024, algorithm 1; with one barrier in place of two, algorithm 2,
/// where the ranks exchange their parts of that gradient together with the rest.
template <Symbolic V>
V loss_in_passes(const V& hidden, const V& w, const V& targets, VocabularyRows::Args a, const Axis& axis,
                 int barriers = 2) {
  auto& g = hidden.graph();
  const bool trains = g.wants_gradient(hidden) || g.wants_gradient(w);
  a.keep_logits = a.keep_logits && trains;
  if (barriers == 1 && trains) {
    const auto [stats, logits, summands] = record<VocabularySummands>(a, hidden, w, targets);
    const V all = gather_rows(stats, axis);
    const V parts = gather_rows(g.reshape(summands, {summands.shape().size()}), axis);
    const auto [top, sums] = record<VocabularyMerge>({a.vocab, axis.ranks}, all, targets);
    const auto [loss, count, lse] = record<VocabularyValue>({}, targets, top, sums);
    return record<VocabularyLateLoss>(a, loss, hidden, w, targets, lse, logits, all, parts);
  }
  const V h = enter(hidden, axis);
  const auto [unused, stats, logits] = record<VocabularyRows>(a, h, w, targets);
  const V all = gather_rows(stats, axis);
  const auto [top, sums] = record<VocabularyMerge>({a.vocab, axis.ranks}, all, targets);
  return record<VocabularyLoss>(a, h, w, targets, top, sums, logits)[0];
}

}  // namespace hpcdl
