#include "hpcdl/infer/generator.h"

#include <algorithm>

#include "hpcdl/core/clock.h"
#include "hpcdl/core/error.h"
#include "hpcdl/parallel/tensor.h"

namespace hpcdl::infer {

namespace {

/// A product of an f32 activation and a 16-bit weight is one that no tensor core forms.
DType type_of_steps(const models::LanguageModel& model) {
  const DType weights = model.matrix_type();
  return model.device().is_cuda() && (weights == DType::bf16 || weights == DType::f16) ? weights : DType::f32;
}

}  // namespace

Generator::Generator(const models::LanguageModel& model, Pool& pool, std::int64_t capacity)
    : model_(model), stream_(model.device(), pool, &params_), capacity_(capacity), dtype_(type_of_steps(model)) {
  const auto& c = model.config();
  require(capacity >= 1 && capacity <= c.context, "generate",
          "{} tokens do not fit into the model's context of {}: ask for fewer, or shorten the prompt", capacity,
          c.context);
  const std::int64_t ranks = model.sharing() ? model.sharing()->size() : 1;  // each caches its heads
  const Spec spec{{1, capacity, c.kv_heads / ranks * c.head_dim}, dtype_};
  for (int i = 0; i < c.layers; ++i) {
    memory_.emplace_back(spec, model.device());
    cache_.keys.push_back(memory_.back().tensor);
    memory_.emplace_back(spec, model.device());
    cache_.values.push_back(memory_.back().tensor);
  }
}

Generator::Step& Generator::step(std::int64_t tokens) {
  const auto found = steps_.find(tokens);
  if (found != steps_.end()) return found->second;
  Graph g({.inference = true});
  const nn::ForwardOptions options{.compute = dtype_, .cache = &cache_};
  const Var ids = g.input("tokens", {{1, tokens}, DType::i32});
  const Var hidden = g.keep(model_.body(g, ids, options));
  const Var logits = tokens == 1 ? g.keep(model_.head(g, hidden)) : Var();
  return steps_.emplace(tokens, Step{Instance(g.finish(), nullptr, stream_.device()), ids, hidden, logits})
      .first->second;
}

Generator::Step& Generator::head() {
  if (!head_) {
    Graph g({.inference = true});
    const Var hidden = g.input("hidden", {{1, 1, model_.config().width}, dtype_});
    const Var logits = g.keep(model_.head(g, hidden));
    head_ = std::make_unique<Step>(Step{Instance(g.finish(), nullptr, stream_.device()), {}, hidden, logits});
  }
  return *head_;
}

std::vector<const Instance*> Generator::programs(std::int64_t prompt_tokens) {
  std::vector<const Instance*> list{&step(1).exe};
  if (prompt_tokens > 1) list.push_back(&head().exe);
  for (std::int64_t chunk = kLargestChunk; chunk > 1; chunk /= 2) {
    if (chunk <= prompt_tokens) list.push_back(&step(chunk).exe);
    prompt_tokens %= chunk;
  }
  return list;
}

std::span<const float> Generator::head_of_last(const Step& s, std::int64_t tokens) {
  head();
  const Tensor row = head_->exe.tensor(head_->hidden);
  const std::byte* last = s.exe.tensor(s.hidden).ptr<std::byte>() + (tokens - 1) * row.bytes();
  copy(stream_, row, View(last, row.spec(), stream_.device()));
  head_->exe.run(stream_);
  return on_host(head_->exe.tensor(head_->logits));
}

std::span<const float> Generator::on_host(const Tensor& logits) {
  if (!logits.device().is_cuda()) return {logits.ptr<float>(), static_cast<std::size_t>(logits.size())};
  logits_.resize(static_cast<std::size_t>(logits.size()));
  copy(stream_, Tensor(logits_.data(), logits.spec()), logits);
  return logits_;
}

/// Runs ids after those that the cache holds; returns the logits of the last one.
std::span<const float> Generator::feed(std::span<const std::int32_t> ids) {
  while (true) {
    std::int64_t chunk = kLargestChunk;
    while (chunk > static_cast<std::int64_t>(ids.size())) chunk /= 2;
    Step& s = step(chunk);
    const Tensor tokens = s.exe.tensor(s.tokens);
    copy(stream_, tokens, View(ids.data(), tokens.spec()));
    s.exe.run(stream_);
    params_.position += chunk;
    ids = ids.subspan(static_cast<std::size_t>(chunk));
    if (!ids.empty()) continue;
    if (chunk > 1) return head_of_last(s, chunk);
    return on_host(s.exe.tensor(s.logits));
  }
}

GenerationStats Generator::generate(std::span<const std::int32_t> prompt, int tokens, const SamplingOptions& sampling,
                                    const std::function<bool(std::int32_t)>& on_token) {
  sampling.check();
  require(!prompt.empty(), "generate", "the prompt is empty: give at least one token");
  require(static_cast<std::int64_t>(prompt.size()) + tokens <= capacity_, "generate",
          "{} prompt tokens and {} new ones do not fit: there is room for {}", prompt.size(), tokens, capacity_);
  for (auto id : prompt)
    require(id >= 0 && id < model_.config().vocab, "generate",
            "token {} is not in the model's vocabulary of {}: tokenizer and model do not belong together", id,
            model_.config().vocab);
  GenerationStats stats;
  stats.prompt_tokens = static_cast<int>(prompt.size());
  params_.position = 0;
  if (tokens <= 0) return stats;
  const auto start = Clock::now();
  auto logits = feed(prompt);
  Clock::time_point first;
  while (true) {
    const std::int32_t id = sample(logits, sampling, static_cast<std::uint64_t>(stats.new_tokens));
    if (++stats.new_tokens == 1) {
      stats.time_to_first_token_ms = 1e3 * seconds_since(start);
      first = Clock::now();
    }
    if (!on_token(id) || stats.new_tokens == tokens) break;
    logits = feed({&id, 1});
  }
  stats.tokens_per_second =
      stats.new_tokens > 1 ? (stats.new_tokens - 1) / seconds_since(first) : 1e3 / stats.time_to_first_token_ms;
  return stats;
}

}  // namespace hpcdl::infer
