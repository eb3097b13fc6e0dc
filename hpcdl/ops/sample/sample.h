#pragma once
// A token from each row of logits, by the rule of the row (row_sampler.h): the next step of a GPU reads its tokens without
// the host. A rule without a temperature takes the largest value, the first of equal ones.
//
// logits: (R, V) f32, rows may be strided; rules: (R, 10) i32, the words of a SampleRule each, whose index the op
// increments; ids: (R) i32. A row that contains NaN or +infinity gives -1 - the place of the first one, and one of
// only -infinity kNoToken. On a GPU weights are integers, 2^44 for the most likely token, so that their sums do not depend
// on an order; a CPU adds doubles. The tokens are equal unless a draw, or a share that is kept, is within about 2^-40 of
// the border between two.

#include <array>

#include "hpcdl/op.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/ops/sample/row_sampler.h"
#include "hpcdl/program/emit.h"

namespace hpcdl {

struct Sample {
  static constexpr std::string_view name = "sample";
  static constexpr std::int64_t kRuleWords = sizeof(SampleRule) / sizeof(std::int32_t);
  static void check(const Spec& ids, const Spec& logits, const Spec& rules);
  static void choose(Stream& s, Tensor ids, View logits, Tensor rules);
  static void check_record(const RawRecord& r);
  static void run(Stream& s, const Grad* t, const void*) { choose(s, t[0], t[1], t[2]); }
  static Cost cost(const Spec& logits) { return {.operations = static_cast<double>(logits.size())}; }
};

namespace cpu {
void sample(Tensor ids, View logits, Tensor rules);
}  // namespace cpu
namespace cuda {
void sample(Stream&, Tensor ids, View logits, Tensor rules);
/// Where the next token of each of R sequences belongs, on the device: positions i32 (R), lengths i32 (R), the number of
/// its keys, its own included; and in layers with pages of their own: slots i64 (R), -1 for padding, pages i32 (R, W).
struct NextTokens {
  struct Places {
    Tensor slots;
    View pages;
  };
  Tensor positions, lengths;
  std::array<Places, 2> places = {};  // without tensors: none
};
/// Writes the ids (R) to pinned memory of the host, and makes `next` one token later: a kernel where a copy each way would
/// keep the next step waiting.
void deliver(Stream&, std::int32_t* to, View ids, const NextTokens& next);
}  // namespace cuda

/// Records the choice and overwrites `ids` with its result; `ids` may be the input of the program's next run.
template <Symbolic V> void sample_into(const V& ids, const V& logits, const V& rules) {
  Sample::check(ids.spec(), logits.spec(), rules.spec());
  const auto operand = update_operand(ids);  // an input keeps its memory until the end
  const decltype(update_operand(ids)) operands[] = {operand, read_operand(logits), update_operand(rules)};
  logits.graph().template emit<Sample>(operands, nullptr, 0, Sample::cost(logits.spec()));
}

}  // namespace hpcdl
