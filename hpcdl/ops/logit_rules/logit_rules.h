#pragma once
// Changes the logits of several texts in place, each row by its rules (row_rules.h), before tokens are chosen from them.
//
// logits: (R, V) f32, rows may be strided. rules: (R, 4) i32, the words of a Rule each. starts: i32 (2R+1): the biases of
// row r are changes starts[2r] .. starts[2r+1], and the counts of its tokens those up to starts[2r+2]. changes: (N, 3)
// i32, the words of a LogitChange each. masks: (M, ceil(V/32)) i32, of which a rule names one. Results on CPU and GPU have
// the same bits. A CPU refuses starts and masks that do not fit; on a GPU they must.

#include "hpcdl/op.h"
#include "hpcdl/ops/logit_rules/row_rules.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/emit.h"

namespace hpcdl {

struct LogitRules {
  static constexpr std::string_view name = "logit_rules";
  struct Rule {
    LogitPenalties penalties = {};
    std::int32_t mask = -1;  // a row of masks; -1: all tokens
  };
  static constexpr std::int64_t kRuleWords = sizeof(Rule) / sizeof(std::int32_t),
                                kChangeWords = sizeof(LogitChange) / sizeof(std::int32_t);
  static constexpr std::int64_t mask_words(std::int64_t vocab) { return (vocab + 31) / 32; }

  static void check(const Spec& logits, const Spec& rules, const Spec& starts, const Spec& changes, const Spec& masks);
  static void apply(Stream& s, Tensor logits, View rules, View starts, View changes, View masks);
  static void check_record(const RawRecord& r);
  static void run(Stream& s, const Grad* t, const void*) { apply(s, t[0], t[1], t[2], t[3], t[4]); }
  static Cost cost(const Spec& logits) { return {.operations = static_cast<double>(logits.size())}; }
};

namespace cpu {
void logit_rules(Tensor logits, View rules, View starts, View changes, View masks);
}  // namespace cpu
namespace cuda {
void logit_rules(Stream&, Tensor logits, View rules, View starts, View changes, View masks);
}  // namespace cuda

/// Records the change of `logits`.
template <Symbolic V>
void logit_rules_into(const V& logits, const V& rules, const V& starts, const V& changes, const V& masks) {
  LogitRules::check(logits.spec(), rules.spec(), starts.spec(), changes.spec(), masks.spec());
  const decltype(update_operand(logits)) operands[] = {
      update_operand(logits), read_operand(rules), read_operand(starts), read_operand(changes), read_operand(masks)};
  logits.graph().template emit<LogitRules>(operands, nullptr, 0, LogitRules::cost(logits.spec()));
}

}  // namespace hpcdl
