#pragma once
// A text that an engine generates: what it is asked for, and what it answers.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hpcdl/infer/sampling_options.h"
#include "hpcdl/infer/token_constraint.h"
#include "hpcdl/ops/logprobs/row_logprobs.h"

namespace hpcdl::infer {

/// Logprobs are natural logarithms of probabilities before all rules of sampling.
struct Token {
  std::int32_t id = 0;
  float logprob = 0;                   // if it was asked for
  std::vector<TokenLogprob> top = {};  // the most likely tokens in their order, as many as were asked for
};

struct GenerationStats {
  int prompt_tokens = 0, new_tokens = 0;
  int cached_tokens = 0;              // of the prompt, whose keys and values were there
  int preemptions = 0;                // times that other texts took its pages
  int proposed_tokens = 0;            // of speculation
  int accepted_tokens = 0;            // of these, the ones that came true
  double time_to_first_token_ms = 0;  // from submit() on
  double tokens_per_second = 0;       // for the tokens after the first, unless it is the only one
};

struct End {
  enum class Reason {
    eos,        // the last token is one of those that the model's config names
    length,     // as many tokens as were asked for
    stop,       // the last token is a stop id, or on_token returned false
    cancelled,  // Engine::cancel()
    failed      // `message` says why
  };
  Reason reason = Reason::length;
  std::string message = {};
  GenerationStats stats = {};
  /// Of the tokens of the prompt but the first, if they were asked for and the prompt was processed.
  std::vector<Token> prompt_logprobs = {};
};

/// Hears of each new token, the one that ends the text included; returns false to stop.
using OnToken = std::function<bool(const Token&)>;
/// Is called once, after the last token.
using OnEnd = std::function<void(const End&)>;

struct Request {
  std::vector<std::int32_t> prompt = {};  // at least one token
  int tokens = 0;                         // new ones, at most
  SamplingOptions sampling = {};
  int prompt_logprobs = -1;                          // like SamplingOptions::logprobs, for the tokens of the prompt
  int priority = 0;                                  // larger ones begin earlier and are preempted later
  std::int32_t adapter = -1;                         // of LanguageModel::adapters(); -1: none
  std::string cache_salt = {};                       // only texts with the same one share keys and values
  std::shared_ptr<TokenConstraint> constraint = {};  // of this text alone; null: none
  OnToken on_token = {};
  OnEnd on_end = {};
};

/// Never given twice by an engine.
using RequestId = std::uint64_t;

}  // namespace hpcdl::infer
