#pragma once
// The first and the last layer of a language model with the vocabulary spread over the ranks: rank r holds rows [begin,
// begin + V_r) of the table, and every row is somewhere. The numbers of rows need not be the same: nothing here is
// gathered by rows.
//
// Source: Shoeybi et al., "Megatron-LM", 2019, section 3.

#include "hpcdl/ops/embedding/embedding.h"
#include "hpcdl/ops/lm_head_loss/lm_head_loss.h"
#include "hpcdl/parallel/collectives.h"

namespace hpcdl::parallel {

/// What rank `rank` of `ranks` holds of a vocabulary: shares that differ by one row or, in vocabularies so large that
/// this costs little balance, by the 64 rows that products on a GPU like.
struct VocabularyShare {
  std::int64_t begin, end;
};
VocabularyShare vocabulary_share(std::int64_t vocab, int rank, int ranks);

/// Embedding (ops/embedding) of rows that are spread over the ranks. A rank adds zeros for ids of others, and rank 0
/// the positions; `sums` adds the ranks up. The gradients of the rank's rows and of the positions follow from dy, which
/// every rank has. Ids that no rank has give zeros (rows of NaN on one rank): the data loader refuses them before.
struct VocabularyEmbedding {
  static constexpr std::string_view name = "vocabulary_embedding";
  static constexpr bool kGathers = true;
  struct Args {
    DType out = DType::none;
    Peers peers;
    std::int64_t begin = 0;
    bool sums = true;
  };
  static Spec infer(const Spec& table, const Spec& ids, const Spec& positions, const Args& a) {
    return Embedding::infer(table, ids, positions, {a.out});
  }
  static Cost cost(const Spec& table, const Spec& ids, const Spec& positions, const Args& a) {
    return Embedding::cost(table, ids, positions, {a.out});
  }
  static void forward(Stream& s, Tensor y, View table, View ids, View positions, const Args& a);
  /// Those of Embedding; behind the sorted tokens, the ids as the rank's rows count.
  static std::array<Spec, 4> backward_scratch(const Spec& table, const Spec& ids, const Spec& positions, const Args& a);
  static void backward(Stream& s, Grad dtable, Grad dpositions, View ids, View dy, Tensor starts, Tensor order,
                       Tensor ranks, Tensor parts, const Args& a);
  using Backward = Operands<dIn<0>, dIn<2>, In<1>, dOut<0>, Scratch<0>, Scratch<1>, Scratch<2>, Scratch<3>>;
};

/// lm_head_loss (ops/lm_head_loss) of logits that are spread over the ranks by columns: w holds the rank's V_r rows.
/// Three numbers of each row of h cross the wire: the largest logit, the sum of exponentials and the logit of the
/// target. Loss and count are those of the whole vocabulary on every rank; dh is the rank's addend, for Enter in front
/// of it.
struct VocabularyLoss {
  static constexpr std::string_view name = "vocabulary_loss";
  static constexpr int kAux = 2;
  struct Args {
    bool keep_logits = false;
    Peers peers;
    std::int64_t begin = 0, vocab = 0;  // of all ranks
  };
  static LmHeadLoss::Args local(const Args& a) { return {.keep_logits = a.keep_logits}; }
  static std::array<Spec, 4> infer(const Spec& h, const Spec& w, const Spec& targets, const Args& a) {
    return LmHeadLoss::infer(h, w, targets, local(a));
  }
  static Cost cost(const Spec& h, const Spec& w, const Spec& targets, const Args& a) {
    return LmHeadLoss::cost(h, w, targets, local(a));
  }
  static Cost backward_cost(const Spec& h, const Spec& w, const Spec& targets, const Args& a) {
    return LmHeadLoss::backward_cost(h, w, targets, local(a));
  }
  /// A chunk of logits; per row: maximum, sum, logit of the target, loss; what crosses the wire: maximum, then sum and
  /// target; the targets as the rank's columns count.
  static std::array<Spec, 4> scratch(const Spec& h, const Spec& w, const Spec& targets, const Args& a);
  static void forward(Stream& s, Tensor loss, Tensor count, Tensor lse, Tensor logits, View h, View w, View targets,
                      Tensor chunk, Tensor stats, Tensor wire, Tensor here, const Args& a);
  static std::array<Spec, 3> backward_scratch(const Spec& h, const Spec& w, const Spec& targets, const Args& a);
  static void backward(Stream& s, Grad dh, Grad dw, View h, View w, View targets, View lse, View logits, View dloss,
                       Tensor chunk, Tensor sum, Tensor here, const Args& a);
  using Backward =
      Operands<dIn<0>, dIn<1>, In<0>, In<1>, In<2>, Out<2>, Out<3>, dOut<0>, Scratch<0>, Scratch<1>, Scratch<2>>;
};

/// Logits (..., V_r) of each rank's rows of the head to (..., V) on all, bit for bit. For inference: what trains never
/// has them in one place.
struct GatherVocabulary {
  static constexpr std::string_view name = "gather_vocabulary";
  struct Args {
    Peers peers;
    std::int64_t vocab = 0;  // of all ranks
  };
  static Spec infer(const Spec& x, const Args& a);
  static Cost cost(const Spec& x, const Args& a) {
    return {0, (1.0 + 3.0 * a.peers.size()) * static_cast<double>(x.bytes())};
  }
  /// The parts of all ranks, as wide as the widest, and before them the rank's own.
  static std::array<Spec, 2> scratch(const Spec& x, const Args& a);
  static void forward(Stream& s, Tensor y, View x, Tensor mine, Tensor parts, const Args& a);
};

/// The columns of a vocabulary that a rank has, and how many there are.
struct Columns {
  std::int64_t begin, count, vocab;
};

namespace cpu {
void vocabulary_embedding(Pool&, Tensor y, View table, View ids, View positions, std::int64_t begin,
                          std::int64_t position);
/// here[i] = ids[i] - begin; -1 where ids[i] < 0, `elsewhere` where that row is another rank's.
void local_ids(Tensor here, View ids, Columns c, std::int32_t elsewhere);
/// wire (3, rows): sum and target logit as the other ranks add them up, once wire[0] is the maximum of all.
void loss_addends(Tensor wire, View stats, View targets, Columns c);
/// lse and, in stats[3], the loss of each row, from what all ranks have added up.
void loss_of_rows(Tensor stats, Tensor lse, View wire, View targets);
}  // namespace cpu
namespace cuda {
void vocabulary_embedding(Stream&, Tensor y, View table, View ids, View positions, std::int64_t begin);
void local_ids(Stream&, Tensor here, View ids, Columns c, std::int32_t elsewhere);
void loss_addends(Stream&, Tensor wire, View stats, View targets, Columns c);
void loss_of_rows(Stream&, Tensor stats, Tensor lse, View wire, View targets);
}  // namespace cuda

inline Var vocabulary_embedding(const Var& table, const Var& ids, const Var& positions,
                                const VocabularyEmbedding::Args& a) {
  return record<VocabularyEmbedding>(a, table, ids, positions);
}
inline Var gather_vocabulary(const Var& logits, const Peers& peers, std::int64_t vocab) {
  return record<GatherVocabulary>({peers, vocab}, logits);
}
/// {loss, count}
inline auto vocabulary_loss(const Var& h, const Var& w, const Var& targets, const VocabularyLoss::Args& a) {
  return record<VocabularyLoss>(a, h, w, targets);
}

}  // namespace hpcdl::parallel
