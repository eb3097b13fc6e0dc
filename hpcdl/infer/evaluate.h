#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "hpcdl/infer/rank_link.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/pool.h"

namespace hpcdl::infer {

struct EvalResult {
  double loss = 0;          // mean negative log-likelihood per predicted token, nats
  double perplexity = 0;    // e^loss
  std::int64_t tokens = 0;  // number of predictions
};

/// Next-token loss over a token stream, divided into windows of the model's context (predictions use only their own
/// window). All ranks that share the model make the same call. Throws Error for fewer than two tokens and for ids outside
/// the vocabulary. `progress` receives the number of tokens done so far.
EvalResult evaluate(const models::LanguageModel& model, Pool& pool, std::span<const std::int32_t> tokens,
                    const nn::ForwardOptions& options = {}, const std::function<void(std::int64_t)>& progress = {});

struct PagedEvaluation {
  DType kv = DType::none;     // of keys and values, as in pool_spec()
  RankLink* ranks = nullptr;  // see EngineOptions
};

/// The same loss through an engine: what texts that are generated see. Windows predict one token less, since the engine
/// reads the last one, too.
EvalResult evaluate_in_pages(const models::LanguageModel& model, Pool& pool, std::span<const std::int32_t> tokens,
                             const PagedEvaluation& options, const std::function<void(std::int64_t)>& progress = {});

}  // namespace hpcdl::infer
