#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "hpcdl/core/pinned.h"
#include "hpcdl/infer/sampler.h"
#include "hpcdl/instance.h"
#include "hpcdl/models/language_model.h"

namespace hpcdl::infer {

struct GenerationStats {
  int prompt_tokens = 0, new_tokens = 0;
  double time_to_first_token_ms = 0;  // time from prompt to first token
  double tokens_per_second = 0;       // for the tokens after the first, unless it is the only one
};

/// The pass of a step of a generator with room for `capacity` tokens; the model may be only described. The pass of
/// several tokens returns their hidden states, and that of one token also its logits; the cache remains to be bound.
std::shared_ptr<const Pass> step_pass(const models::LanguageModel& model, std::int64_t tokens, std::int64_t capacity,
                                      const Numerics& numerics = {});
/// Input: hidden states of one token; output: its logits.
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

  /// The ways in which its programs compute on a GPU, to be set before the first token.
  void set_ways(std::shared_ptr<const Ways> ways) { stream_.set_ways(std::move(ways)); }

  /// Generates up to `tokens` new ids; on_token returns false to stop. Throws Error if they do not fit the capacity, or
  /// if a prompt id is not in the vocabulary.
  GenerationStats generate(std::span<const std::int32_t> prompt, int tokens, const SamplingOptions& sampling,
                           const std::function<bool(std::int32_t id)>& on_token);

  /// The type of activations and of the cache.
  DType dtype() const { return dtype_; }

  /// The maximum number of tokens that run through one program.
  static constexpr std::int64_t kLargestChunk = 64;
  /// The programs for a prompt of this many tokens and for the new tokens after it.
  std::vector<const Instance*> programs(std::int64_t prompt_tokens);

 private:
  Instance& step(std::int64_t tokens);
  void run(Instance& exe, Stream& s);
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
  Pinned ids_;     // for two steps
  std::map<std::int64_t, Instance> steps_;
  std::optional<Instance> head_;
  std::set<const Instance*> warm_;  // have run: what a GPU loads lazily has been loaded
};

}  // namespace hpcdl::infer
