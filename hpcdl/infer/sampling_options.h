#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include "hpcdl/ops/logprobs/logprobs.h"
#include "hpcdl/ops/sample/row_sampler.h"

namespace hpcdl::infer {

/// How the next token of a text is chosen. The default takes the most likely one. The rules change the logits in this
/// order, which is that of transformers: bias; banned and allowed ids, tokens before which a text may not end, and the
/// text's constraint; penalties; temperature; top-k; top-p; min-p; typical-p. A share of a later rule is one of the
/// probability that the rules before it left.
struct SamplingOptions {
  float temperature = 0;  // 0: greedy
  int top_k = 0;          // keep the k most likely tokens; 0: all
  float top_p = 1;        // keep the smallest set with at least this probability; 1: all (Holtzman et al., 2020)
  float min_p = 0;        // keep tokens with at least this share of the probability of the most likely one; 0: all
  float typical_p = 1;    // keep the tokens whose information is nearest to the entropy, up to this probability;
                          // 1: all (Meister et al., 2023)
  float repetition_penalty = 1;  // divides positive logits of tokens that the text contains, prompt included, and
                                 // multiplies negative ones; 1: none (Keskar et al., 2019)
  float presence_penalty = 0;    // is subtracted from the logits of new tokens that the text contains
  float frequency_penalty = 0;   // is subtracted for each time
  std::map<std::int32_t, float> logit_bias = {};  // by id; is added
  std::vector<std::int32_t> allowed_ids = {};     // no others; empty: all
  std::vector<std::int32_t> banned_ids = {};
  int min_tokens = 0;                       // new ones, before which no token that ends the text is taken
  std::vector<std::int32_t> stop_ids = {};  // end the text, beside those of the model
  bool ignore_eos = false;                  // the model's ids do not end the text
  std::uint64_t seed = 0;
  int logprobs = -1;  // -1: none; 0: of each new token; N: of the N most likely ones, too. They are logarithms of the
                      // model's probabilities before any rule.

  /// Whether the most likely token is always taken.
  bool is_greedy() const { return temperature == 0 || top_k == 1; }
  /// Whether a GPU can choose the tokens, so that it keeps the logits.
  bool fits_device() const { return logprobs <= Logprobs::kMost; }
  /// The rules after those that change logits, for new token `index`.
  SampleRule rule(std::uint64_t index) const {
    return {.seed = seed,
            .index = index,
            .temperature = is_greedy() ? 0 : temperature,
            .top_p = top_p,
            .min_p = min_p,
            .typical_p = typical_p,
            .top_k = top_k};
  }
  bool has_penalties() const { return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0; }
  /// Throws UsageError for invalid values; `vocab` is the number of ids.
  void check(std::int64_t vocab = std::numeric_limits<std::int32_t>::max()) const;
};

}  // namespace hpcdl::infer
