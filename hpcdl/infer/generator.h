#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
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

/// What a generator of a model with room for `capacity` tokens runs; the model may be only described. The pass of some
/// tokens gives their hidden states and, if it is one, its logits; the cache is yet to be bound.
std::shared_ptr<const Pass> step_pass(const models::LanguageModel& model, std::int64_t tokens, std::int64_t capacity,
                                      const Numerics& numerics = {});
/// Hidden states of one token in, logits out.
std::shared_ptr<const Pass> head_pass(const models::LanguageModel& model, const Numerics& numerics = {});

/// Generates one sequence at a time. A step is a recorded program over a KV cache: the prompt runs through programs of
/// 64, 32, ... 1 tokens, so that no position is computed twice or padded; new tokens through the program of one.
/// All ranks that share the layers of a model make the same calls and get the same tokens; their scheme must not split
/// sequences. Computes, and caches, in f32; on a GPU in the type of the model's matrices where they have 16 bits, and in
/// that of their codec where they are quantised.
class Generator {
 public:
  /// Room for `capacity` tokens, prompt included; at most the model's context. Where `numerics` are row-invariant, the
  /// logits after a token have the same bits whatever programs the tokens before it ran through.
  Generator(const models::LanguageModel& model, Pool& pool, std::int64_t capacity, const Numerics& numerics = {});

  /// Up to `tokens` new ids; on_token returns false to stop. Throws Error when they do not fit the capacity, or when a
  /// prompt id is not in the vocabulary.
  GenerationStats generate(std::span<const std::int32_t> prompt, int tokens, const SamplingOptions& sampling,
                           const std::function<bool(std::int32_t id)>& on_token);

  /// Bytes of activations and of the cache.
  DType dtype() const { return dtype_; }

  /// Tokens that run through one program at most.
  static constexpr std::int64_t kLargestChunk = 64;
  /// The programs that a prompt of so many tokens and the new tokens after it run through.
  std::vector<const Instance*> programs(std::int64_t prompt_tokens);

 private:
  Instance& step(std::int64_t tokens);
  void run(Instance& exe);
  void run_ahead(std::int32_t token, int tokens, const std::function<bool(std::int32_t)>& on_token);
  std::span<const float> feed(std::span<const std::int32_t> ids);
  Instance& head();
  std::span<const float> head_of_last(const Instance& exe, std::int64_t tokens);
  std::span<const float> on_host(const Tensor& logits);

  const models::LanguageModel& model_;
  StepParams params_;
  Stream stream_;
  std::int64_t capacity_;
  Numerics numerics_;
  DType dtype_;
  std::vector<OwnedTensor> memory_;
  nn::KvCache cache_;
  Pinned logits_;  // of the last token, on the host
  Pinned ids_;     // of two steps
  std::map<std::int64_t, Instance> steps_;
  std::optional<Instance> head_;
  std::set<const Instance*> warm_;  // have run: what a GPU loads lazily has been loaded
};

}  // namespace hpcdl::infer
