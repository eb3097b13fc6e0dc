#pragma once

#include <cstdint>
#include <span>

namespace hpcdl::infer {

struct SamplingOptions {
  float temperature = 0;  // 0: greedy
  int top_k = 0;          // keep the k most likely tokens; 0: all
  float top_p = 1;        // keep the smallest set with at least this probability; 1: all (Holtzman et al., 2020)
  std::uint64_t seed = 0;

  /// Whether the most likely token is always taken.
  bool is_greedy() const { return temperature == 0 || top_k == 1; }
  /// Throws UsageError for invalid values.
  void check() const;
};

/// One token id from the logits of one position. A pure function of (logits, options, index); ties go to the lowest id.
/// Throws Error if a logit is NaN or +infinity, or all are -infinity.
int sample(std::span<const float> logits, const SamplingOptions& options, std::uint64_t index);

}  // namespace hpcdl::infer
