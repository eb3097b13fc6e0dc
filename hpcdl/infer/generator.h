#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "hpcdl/core/pinned.h"
#include "hpcdl/graph/instance.h"
#include "hpcdl/infer/sampler.h"
#include "hpcdl/models/language_model.h"

namespace hpcdl::infer {

struct GenerationStats {
  int prompt_tokens = 0, new_tokens = 0;
  double time_to_first_token_ms = 0;  // prompt in, first token out
  double tokens_per_second = 0;       // of the tokens after the first, unless it is the only one
};

/// Generates one sequence at a time. A step is a recorded program over a KV cache: the prompt runs through programs of
/// 64, 32, ... 1 tokens, so that no position is computed twice or padded; new tokens through the program of one.
/// Ranks that share the layers of a model call it alike, and get the same tokens; their scheme must not split
/// sequences. Computes, and caches, in f32; on a GPU in the type of the model's matrices where they have 16 bits.
class Generator {
 public:
  /// Room for `capacity` tokens, prompt included; at most the model's context.
  Generator(const models::LanguageModel& model, Pool& pool, std::int64_t capacity);

  /// Up to `tokens` new ids; on_token returns false to stop. Throws Error when they do not fit the capacity, or when a
  /// prompt id is not in the vocabulary.
  GenerationStats generate(std::span<const std::int32_t> prompt, int tokens, const SamplingOptions& sampling,
                           const std::function<bool(std::int32_t id)>& on_token);

  /// Of activations and of the cache.
  DType dtype() const { return dtype_; }

  /// Tokens that run through one program at most.
  static constexpr std::int64_t kLargestChunk = 64;
  /// Those that a prompt of so many tokens and the new tokens behind it run through.
  std::vector<const Instance*> programs(std::int64_t prompt_tokens);

 private:
  struct Step {
    Instance exe;
    Var tokens, hidden, logits;  // logits only in the program of one token
    bool warm = false;           // it ran: what a GPU loads lazily has been loaded
  };
  void run(Step& step);
  Step& step(std::int64_t tokens);
  std::span<const float> feed(std::span<const std::int32_t> ids);
  Step& head();
  std::span<const float> head_of_last(const Step& s, std::int64_t tokens);
  std::span<const float> on_host(const Tensor& logits);

  const models::LanguageModel& model_;
  StepParams params_;
  Stream stream_;
  std::int64_t capacity_;
  DType dtype_;
  std::vector<OwnedTensor> memory_;
  nn::KvCache cache_;
  std::shared_ptr<Buffer> arena_;
  Pinned logits_;  // of the last token, on the host
  std::map<std::int64_t, Step> steps_;
  std::unique_ptr<Step> head_;
};

}  // namespace hpcdl::infer
