#pragma once
// Memory of a GPU for the rules of rows of logits, which its programs share.

#include <cstdint>
#include <span>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/instance.h"
#include "hpcdl/ops/logit_rules/row_rules.h"

namespace hpcdl::infer {

/// Sizes of what the rules of a pass may hold in all.
struct RuleRoom {
  std::int64_t changes = 0;  // biases and counts; 0: passes have no rules
  std::int64_t masks = 0;
  bool operator==(const RuleRoom&) const = default;
};

/// The operands of logit_rules() for `rows` rows.
struct RuleSpecs {
  Spec rules, starts, changes, masks;
  RuleSpecs(std::int64_t rows, const RuleRoom& room, std::int64_t vocab);
};
inline constexpr const char *kRowRules = "batch.row_rules", *kRuleStarts = "batch.rule_starts",
                            *kRuleChanges = "batch.rule_changes", *kRuleMasks = "batch.rule_masks";

class RuleMemory {
 public:
  RuleMemory(std::int64_t most_rows, std::int64_t vocab, Device device);

  const RuleRoom& room() const { return room_; }
  /// Whether there is room for these rules.
  bool fits(std::span<const RowRules> rows) const;
  /// Makes room for them, in other memory, to which programs have to be bound. No pass may be going on.
  void grow(std::span<const RowRules> rows);
  void bind(std::int64_t rows, Bindings& to) const;
  /// Copies the rules of `count` rows, of which those after `rows` have none.
  void set(Stream& s, std::int64_t count, std::span<const RowRules> rows);

 private:
  std::int64_t most_rows_, vocab_;
  RuleRoom room_;
  OwnedTensor rules_, starts_, changes_, masks_;
  std::vector<std::byte> staging_;  // all of them, on the host
};

}  // namespace hpcdl::infer
