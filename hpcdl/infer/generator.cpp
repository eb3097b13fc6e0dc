#include "hpcdl/infer/generator.h"

#include <algorithm>

#include "hpcdl/core/clock.h"
#include "hpcdl/core/error.h"
#include "hpcdl/ops/argmax/argmax.h"
#include "hpcdl/parallel/tensor.h"

namespace hpcdl::infer {

namespace {

/// A product of an f32 activation and a 16-bit weight is one that no tensor core forms.
DType type_of_steps(const models::LanguageModel& model) {
  if (!model.device().is_cuda()) return DType::f32;
  if (const auto& quant = model.config().quant) return quant->codec->activations_on_gpu;
  const DType weights = model.matrix_type();
  return weights == DType::bf16 || weights == DType::f16 ? weights : DType::f32;
}

/// The keys or the values of one layer.
Spec cache_spec(const models::LanguageModel& model, std::int64_t capacity) {
  const auto& c = model.config();
  const std::int64_t ranks = model.sharing() ? model.sharing()->size() : 1;  // each caches its heads
  return {{1, capacity, c.kv_heads / ranks * c.head_dim}, type_of_steps(model)};
}

void deliver([[maybe_unused]] Stream& s, [[maybe_unused]] std::int32_t* to, [[maybe_unused]] const View& ids) {
#if HPCDL_CUDA
  cuda::deliver(s, to, ids);
#endif
}

/// In the key of a pass.
std::string key_of(const Numerics& n) {
  return fmt::format("{}{}{}", static_cast<int>(n.products), n.atomic_sums ? 1 : 0, n.row_invariant ? 1 : 0);
}

}  // namespace

std::shared_ptr<const Pass> step_pass(const models::LanguageModel& model, std::int64_t tokens, std::int64_t capacity,
                                      const Numerics& numerics) {
  const auto cache =
      nn::KvCache::described(static_cast<std::size_t>(model.config().layers), cache_spec(model, capacity));
  const nn::ForwardOptions options{.compute = type_of_steps(model), .cache = &cache};
  return model.programs().pass(fmt::format("step {} {} {}", tokens, key_of(numerics), options.key()), [&] {
    Graph g({.inference = true, .numerics = numerics});
    const Var ids = g.input("tokens", {{1, tokens}, DType::i32});
    std::vector<Var> out{g.keep(model.body(g, ids, options))};
    if (tokens == 1) {
      out.push_back(g.keep(model.head(g, out[0])));
      if (model.device().is_cuda()) argmax_into(g.reshape(ids, {1}), g.reshape(out[1], {1, out[1][-1]}));
    }
    return Pass::of(g, {ids}, out);
  });
}

std::shared_ptr<const Pass> head_pass(const models::LanguageModel& model, const Numerics& numerics) {
  const DType dtype = type_of_steps(model);
  return model.programs().pass(fmt::format("head {} {}", key_of(numerics), dtype_name(dtype)), [&] {
    Graph g({.inference = true, .numerics = numerics});
    const Var hidden = g.input("hidden", {{1, 1, model.config().width}, dtype});
    return Pass::of(g, {hidden}, {model.head(g, hidden)});
  });
}

Generator::Generator(const models::LanguageModel& model, Pool& pool, std::int64_t capacity, const Numerics& numerics)
    : model_(model),
      stream_(model.device(), pool, &params_),
      capacity_(capacity),
      numerics_(numerics),
      dtype_(type_of_steps(model)) {
  const auto& c = model.config();
  require(capacity >= 1 && capacity <= c.context, "generate",
          "{} tokens do not fit into the model's context of {}: ask for fewer, or shorten the prompt", capacity,
          c.context);
  ids_ = Pinned(2 * sizeof(std::int32_t), model.device());
  const Spec spec = cache_spec(model, capacity);
  for (int i = 0; i < c.layers; ++i) {
    memory_.emplace_back(spec, model.device());
    cache_.keys.push_back(memory_.back().tensor);
    memory_.emplace_back(spec, model.device());
    cache_.values.push_back(memory_.back().tensor);
  }
}

Instance& Generator::step(std::int64_t tokens) {
  if (const auto found = steps_.find(tokens); found != steps_.end()) return found->second;
  const auto pass = step_pass(model_, tokens, capacity_, numerics_);
  auto bindings = pass->bindings;
  cache_.bind(bindings);
  return steps_.emplace(tokens, Instance(pass->planned, std::move(bindings), nullptr, stream_.device())).first->second;
}

Instance& Generator::head() {
  return head_ ? *head_ : head_.emplace(*head_pass(model_, numerics_), nullptr, stream_.device());
}

/// On a GPU, one launch from the second run on: launching its kernels one by one takes longer than they run.
void Generator::run(Instance& exe, Stream& s) {
  if (!exe.captured() && !warm_.insert(&exe).second) exe.capture(s);
  exe.run(s);
}

std::vector<const Instance*> Generator::programs(std::int64_t prompt_tokens) {
  std::vector<const Instance*> list{&step(1)};
  if (prompt_tokens > 1) list.push_back(&head());
  for (std::int64_t chunk = kLargestChunk; chunk > 1; chunk /= 2) {
    if (chunk <= prompt_tokens) list.push_back(&step(chunk));
    prompt_tokens %= chunk;
  }
  return list;
}

std::span<const float> Generator::head_of_last(const Instance& exe, std::int64_t tokens) {
  const Tensor row = head().input(0);
  const std::byte* last = exe.output(0).ptr<std::byte>() + (tokens - 1) * row.bytes();
  copy(stream_, row, View(last, row.spec(), stream_.device()));
  run(head(), stream_);
  return on_host(head().output(0));
}

std::span<const float> Generator::on_host(const Tensor& logits) {
  if (!logits.device().is_cuda()) return {logits.ptr<float>(), static_cast<std::size_t>(logits.size())};
  if (logits_.bytes() < logits.bytes()) logits_ = Pinned(logits.bytes(), stream_.device());
  copy_to_pinned(stream_, logits_.data(), logits);
  stream_.synchronize();
  return {logits_.as<float>(), static_cast<std::size_t>(logits.size())};
}

/// Runs ids after those in the cache; returns the logits of the last one.
std::span<const float> Generator::feed(std::span<const std::int32_t> ids) {
  while (true) {
    std::int64_t chunk = kLargestChunk;
    while (chunk > static_cast<std::int64_t>(ids.size())) chunk /= 2;
    Instance& exe = step(chunk);
    const Tensor tokens = exe.input(0);
    copy(stream_, tokens, View(ids.data(), tokens.spec()));
    run(exe, stream_);
    params_.position += chunk;
    ids = ids.subspan(static_cast<std::size_t>(chunk));
    if (!ids.empty()) continue;
    if (chunk > 1) return head_of_last(exe, chunk);
    return on_host(exe.output(1));
  }
}

/// Greedy decoding after `token` on a GPU, whose steps read their tokens and count positions on the device: each step is
/// queued before the host reads the token of the previous one.
void Generator::run_ahead(std::int32_t token, int tokens, const std::function<bool(std::int32_t)>& on_token) {
  Instance& exe = step(1);
  const Tensor next = exe.input(0);
  copy(stream_, next, View(&token, next.spec()));
  stream_.push_params();
  // The same queue, without parameters of the host that each run would copy.
  Stream queue_only = Stream::borrowed(stream_.device(), stream_.native(), stream_.pool(), stream_.kernel_params());
  Stream reader(stream_.device(), stream_.pool());
  Event found[2];
  int queued = 0;
  const auto queue = [&] {
    run(exe, queue_only);
    params_.position += 1;
    deliver(queue_only, ids_.as<std::int32_t>() + queued % 2, next);
    found[queued++ % 2].record(stream_);
  };
  queue();
  for (int i = 0; i < tokens; ++i) {
    if (queued < tokens) queue();
    found[i % 2].wait(reader);
    reader.synchronize();
    const std::int32_t id = ids_.as<std::int32_t>()[i % 2];
    require(
        id >= 0, "generate",
        "the logit of token {} is no finite number: the weights hold NaN or overflow; check them with `hpcdl inspect "
        "--check`",
        -1 - id);
    if (!on_token(id)) break;
  }
  stream_.synchronize();
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
  std::int32_t id = sample(logits, sampling, 0);
  stats.time_to_first_token_ms = 1e3 * seconds_since(start);
  const auto first = Clock::now();
  const auto take = [&](std::int32_t token) {
    ++stats.new_tokens;
    return on_token(token) && stats.new_tokens < tokens;
  };
  bool more = take(id);
  if (more && stream_.device().is_cuda() && sampling.is_greedy()) {
    run_ahead(id, tokens - 1, take);
    more = false;
  }
  while (more) {
    logits = feed({&id, 1});
    id = sample(logits, sampling, static_cast<std::uint64_t>(stats.new_tokens));
    more = take(id);
  }
  stats.tokens_per_second =
      stats.new_tokens > 1 ? (stats.new_tokens - 1) / seconds_since(first) : 1e3 / stats.time_to_first_token_ms;
  return stats;
}

}  // namespace hpcdl::infer
