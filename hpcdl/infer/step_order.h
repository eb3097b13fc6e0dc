#pragma once
// A pass as data: what every rank that runs it has to know.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "hpcdl/infer/batch.h"

namespace hpcdl::infer {

struct Step {
  BatchLayout layout;
  bool continues = false;  // the texts of the last step, each by one more token in the same pages: `rows` is not used
  std::span<const BatchRow> rows;
  std::span<const std::int32_t> tokens;  // as many as the layout has, with padding
  std::span<const SampleRule> rules;     // GPU: of each row of logits
  std::span<const RowRules> changes;     // GPU: of each row of logits; empty: none
  std::span<const std::int32_t> wanted;  // as BatchMemory::set_wanted() takes them; empty: no log-probabilities
};

std::vector<std::byte> to_bytes(const Step& step);

/// The step in such bytes, to which it refers.
class ReadStep {
 public:
  explicit ReadStep(std::span<const std::byte> bytes);
  const Step& step() const { return step_; }

 private:
  Step step_;
  std::vector<BatchRow> rows_;
  std::vector<RowRules> changes_;
};

}  // namespace hpcdl::infer
