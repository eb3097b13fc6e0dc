#include "hpcdl/infer/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "hpcdl/core/error.h"

namespace hpcdl::infer {

namespace {

EngineOptions completed(EngineOptions o, const models::LanguageModel& model) {
  const auto context = model.config().context;
  if (o.context == 0) o.context = context;
  require(o.context >= 1 && o.context <= context, "generate",
          "{} tokens do not fit into the model's context of {}: ask for fewer, or shorten the prompt", o.context,
          context);
  require(o.sequences >= 1 && o.budget >= o.sequences + kLargestChunk, "engine",
          "{} sequences at a time need a budget of at least {} tokens a step, got {}", o.sequences,
          o.sequences + kLargestChunk, o.budget);
  require(o.vocab >= 0 && o.vocab <= model.config().vocab, "engine",
          "the tokenizer has {} tokens, the model {}: tokenizer and model do not belong together", o.vocab,
          model.config().vocab);
  if (o.vocab == 0) o.vocab = model.config().vocab;
  if (o.pages == 0) o.pages = o.sequences * pages_for(o.context);
  require(o.pages >= 1, "engine", "expected a number of pages, got {}", o.pages);
  return o;
}

std::int64_t bucket(std::size_t sequences) { return static_cast<std::int64_t>(std::bit_ceil(sequences)); }

}  // namespace

Engine::Engine(const models::LanguageModel& model, Pool& pool, const EngineOptions& options)
    : model_(model),
      stream_(model.device(), pool),
      options_(completed(options, model)),
      dtype_(type_of_inference(model)),
      pages_(model.config().layers, pool_spec(model, options_.pages), model.device()),
      memory_({.tokens = std::max(kLargestChunk, bucket(static_cast<std::size_t>(options_.sequences))),
               .sequences = bucket(static_cast<std::size_t>(options_.sequences)),
               .pages = pages_for(options_.context)},
              model.device()),
      ids_(2 * bucket(static_cast<std::size_t>(options_.sequences)) * std::int64_t{sizeof(std::int32_t)},
           model.device()) {}

BatchLayout Engine::layout(std::int64_t tokens, std::int64_t sequences) const {
  return {.tokens = tokens, .sequences = sequences, .pages = pages_for(options_.context), .pool_pages = options_.pages};
}

/// In the shared arena, which instances that came first keep as it was if a larger one replaces it.
Instance Engine::instance(const Pass& pass, Bindings bindings) {
  Instance made(pass.planned, std::move(bindings), arena_, stream_.device());
  arena_ = made.arena();
  return made;
}

Instance& Engine::program(std::int64_t tokens, std::int64_t sequences) {
  const std::pair key(tokens, sequences);
  if (const auto found = programs_.find(key); found != programs_.end()) return found->second;
  const auto pass = batch_pass(model_, layout(tokens, sequences), options_.numerics);
  auto bindings = pass->bindings;
  pages_.bind(bindings);
  memory_.bind(layout(tokens, sequences), bindings);
  return programs_.emplace(key, instance(*pass, std::move(bindings))).first->second;
}

Instance& Engine::head() {
  if (!head_) {
    const auto pass = head_pass(model_, options_.numerics);
    head_.emplace(pass->planned, pass->bindings, nullptr, stream_.device());
  }
  return *head_;
}

/// On a GPU, one launch from the second run on: launching its kernels one by one takes longer than they run.
void Engine::run(Instance& exe) {
  if (!exe.captured() && !warm_.insert(&exe).second) exe.capture(stream_);
  exe.run(stream_);
}

std::vector<const Instance*> Engine::programs(std::int64_t prompt_tokens) {
  std::vector<const Instance*> list{&program(1, 1)};
  if (prompt_tokens > 1) list.push_back(&head());
  for (std::int64_t chunk = kLargestChunk; chunk > 1; chunk /= 2) {
    if (chunk <= prompt_tokens) list.push_back(&program(chunk, 1));
    prompt_tokens %= chunk;
  }
  return list;
}

std::span<float> Engine::on_host(const Tensor& logits) {
  if (!logits.device().is_cuda()) return {logits.ptr<float>(), static_cast<std::size_t>(logits.size())};
  if (logits_.bytes() < logits.bytes()) logits_ = Pinned(logits.bytes(), stream_.device());
  copy_to_pinned(stream_, logits_.data(), logits);
  stream_.synchronize();
  return {logits_.as<float>(), static_cast<std::size_t>(logits.size())};
}

RequestId Engine::submit(Request request) {
  const auto vocab = model_.config().vocab;
  request.sampling.check(vocab);
  request.tokens = std::max(0, request.tokens);
  require(!request.prompt.empty(), "generate", "the prompt is empty: give at least one token");
  require(std::ssize(request.prompt) + request.tokens <= options_.context, "generate",
          "{} prompt tokens and {} new ones do not fit: there is room for {}", request.prompt.size(), request.tokens,
          options_.context);
  for (auto id : request.prompt)
    require(id >= 0 && id < vocab, "generate",
            "token {} is not in the model's vocabulary of {}: tokenizer and model do not belong together", id, vocab);
  auto q = std::make_unique<Sequence>();
  q->id = ++last_id_;
  q->request = std::move(request);
  require(pages_of(*q) <= options_.pages, "generate", "{} tokens need {} pages of keys and values, the engine has {}",
          std::ssize(q->request.prompt) + q->request.tokens, pages_of(*q), options_.pages);
  if (q->request.sampling.has_penalties()) q->counts.add_prompt(q->request.prompt);
  q->end.stats.prompt_tokens = static_cast<int>(q->request.prompt.size());
  q->submitted = Clock::now();
  q->ended = q->request.tokens == 0;
  waiting_.push_back(std::move(q));
  return last_id_;
}

bool Engine::cancel(RequestId id) {
  const auto is = [&](const auto& q) { return q->id == id && !q->ended; };
  const auto waits = std::find_if(waiting_.begin(), waiting_.end(), is);
  const auto runs = std::find_if(running_.begin(), running_.end(), is);
  if (waits == waiting_.end() && runs == running_.end()) return false;
  end(waits == waiting_.end() ? **runs : **waits, End::Reason::cancelled);
  if (!stepping_) remove_ended();
  return true;
}

GenerationStats Engine::generate(std::span<const std::int32_t> prompt, int tokens, const SamplingOptions& sampling,
                                 const std::function<bool(std::int32_t id)>& on_token) {
  End end;
  submit({.prompt = {prompt.begin(), prompt.end()},
          .tokens = tokens,
          .sampling = sampling,
          .on_token = [&](const Token& t) { return on_token(t.id); },
          .on_end = [&](const End& e) { end = e; }});
  run();
  if (end.reason == End::Reason::failed) throw Error(end.message);
  return end.stats;
}

bool Engine::step() {
  if (waiting_.empty() && running_.empty()) return false;
  stepping_ = true;
  try {
    advance_all();
    stepping_ = false;
  } catch (...) {
    stepping_ = false;
    for (auto& q : running_) pages_.give_back(q->pages);
    waiting_.clear(), running_.clear(), decoded_.clear();
    throw;
  }
  return true;
}

void Engine::advance_all() {
  std::vector<std::int64_t> pages, prompts, pending;
  for (const auto& q : waiting_) pages.push_back(pages_of(*q)), prompts.push_back(q->pending());
  for (const auto& q : running_) pending.push_back(q->pending());
  const auto plan = schedule({pages, pending, pages_.free_pages()}, prompts,
                             {.sequences = options_.sequences, .budget = options_.budget});
  for (std::size_t i = 0; i < plan.admitted; ++i) {
    waiting_.front()->pages = pages_.take(pages_of(*waiting_.front()));
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  std::vector<Sequence*> batch;
  for (const auto i : plan.continuing) batch.push_back(running_[i].get());
  if (!batch.empty()) {
    // A GPU finds the most likely tokens itself: where no prompt waits, steps are queued before the host reads them.
    std::int64_t ahead = stream_.device().is_cuda() && plan.chunks.empty() ? options_.context : 0;
    for (const auto* q : batch)
      ahead = takes_argmax(*q) ? std::min<std::int64_t>(ahead, q->request.tokens - q->end.stats.new_tokens) : 0;
    if (ahead > 0) decode_ahead(batch, ahead);
    else decode(batch);
  }
  for (const auto& chunk : plan.chunks)
    if (auto& q = *running_[chunk.sequence]; !q.ended) feed(q, chunk.tokens);
  remove_ended();
}

/// Whether a GPU finds its tokens.
bool Engine::takes_argmax(const Sequence& q) const {
  return q.request.sampling.takes_argmax() && !q.request.constraint && options_.vocab == model_.config().vocab;
}

void Engine::end(Sequence& q, End::Reason reason, std::string message) {
  q.ended = true;
  q.end.reason = reason;
  q.end.message = std::move(message);
}

void Engine::remove_ended() {
  std::vector<std::unique_ptr<Sequence>> gone;
  const auto leave = [&](auto& list) {
    for (auto& q : list)
      if (q->ended) gone.push_back(std::move(q));
    std::erase(list, nullptr);
  };
  leave(running_), leave(waiting_);
  for (const auto& q : gone) pages_.give_back(q->pages), decoded_.clear();
  for (const auto& q : gone) {
    auto& s = q->end.stats;
    if (s.new_tokens > 0)
      s.tokens_per_second =
          s.new_tokens > 1 ? (s.new_tokens - 1) / seconds_since(q->first) : 1e3 / s.time_to_first_token_ms;
    if (q->request.on_end) q->request.on_end(q->end);
  }
}

/// The next token of a sequence, from the logits after its last one.
void Engine::choose(Sequence& q, std::span<float> logits) {
  const auto& o = q.request.sampling;
  Token token;
  try {
    const std::vector<float> raw(logits.begin(), o.logprobs >= 0 ? logits.end() : logits.begin());
    token.id = sampler_.sample(logits.first(static_cast<std::size_t>(options_.vocab)), o,
                               {.index = static_cast<std::uint64_t>(q.end.stats.new_tokens),
                                .counts = &q.counts,
                                .eos = model_.config().eos,
                                .constraint = q.request.constraint.get()});
    if (o.logprobs >= 0) token = sampler_.logprobs(raw, token.id, o.logprobs);
    if (q.request.constraint) q.request.constraint->accept(token.id);
  } catch (const Error& e) {
    return end(q, End::Reason::failed, e.what());
  }
  take(q, token);
}

void Engine::take(Sequence& q, const Token& token) {
  const auto& o = q.request.sampling;
  auto& s = q.end.stats;
  q.last = token.id;
  if (++s.new_tokens == 1) {
    s.time_to_first_token_ms = 1e3 * seconds_since(q.submitted);
    q.first = Clock::now();
  }
  if (o.has_penalties()) q.counts.add_output(token.id);
  const auto in = [&](const auto& ids) { return std::find(ids.begin(), ids.end(), token.id) != ids.end(); };
  const bool more = !q.request.on_token || q.request.on_token(token);
  if (q.ended) return;  // the callback has cancelled it
  if (!o.ignore_eos && in(model_.config().eos)) end(q, End::Reason::eos);
  else if (!more || in(o.stop_ids)) end(q, End::Reason::stop);
  else if (s.new_tokens >= q.request.tokens) end(q, End::Reason::length);
}

/// The next tokens of a prompt, and after its last one the first new token.
void Engine::feed(Sequence& q, std::int64_t tokens) {
  Instance& exe = program(tokens, 1);
  const BatchRow row{q.pages, q.done};
  memory_.set(stream_, layout(tokens, 1), {&row, 1});
  decoded_.clear();
  const Tensor ids = exe.input(0);
  copy(stream_, ids, View(q.request.prompt.data() + q.done, ids.spec()));
  run(exe);
  q.done += tokens;
  if (q.pending() > 0) return;
  Tensor logits;
  if (tokens == 1) {
    logits = exe.output(1);
  } else {
    const Tensor last = head().input(0);
    const std::byte* from = exe.output(0).ptr<std::byte>() + (tokens - 1) * last.bytes();
    copy(stream_, last, View(from, last.spec(), stream_.device()));
    run(head());
    logits = head().output(0);
  }
  choose(q, on_host(logits));
}

/// Describes one more token of each of these sequences.
void Engine::set_batch(const std::vector<Sequence*>& batch) {
  if (decoded_ == batch) return memory_.advance(stream_);
  std::vector<BatchRow> rows;
  for (const auto* q : batch) rows.push_back({q->pages, q->done});
  const auto n = bucket(batch.size());
  memory_.set(stream_, layout(n, n), rows);
  decoded_ = batch;
}

void Engine::decode(const std::vector<Sequence*>& batch) {
  const auto n = bucket(batch.size());
  Instance& exe = program(n, n);
  set_batch(batch);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < batch.size(); ++i) ids[i] = batch[i]->last;
  const Tensor tokens = exe.input(0);
  copy(stream_, tokens, View(ids.data(), tokens.spec()));
  run(exe);
  const auto all = on_host(exe.output(1));
  const auto vocab = all.size() / static_cast<std::size_t>(n);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    auto& q = *batch[i];
    ++q.done;
    choose(q, all.subspan(i * vocab, vocab));
  }
}

/// Up to `steps` greedy tokens of each sequence on a GPU, whose steps read their tokens and count positions on the device:
/// each step is queued before the host reads the tokens of the previous one. Ends when a sequence does.
void Engine::decode_ahead(const std::vector<Sequence*>& batch, std::int64_t steps) {
  const auto n = bucket(batch.size());
  Instance& exe = program(n, n);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < batch.size(); ++i) ids[i] = batch[i]->last;
  const Tensor next = exe.input(0);
  copy(stream_, next, View(ids.data(), next.spec()));
  Stream reader(stream_.device(), stream_.pool());
  Event found[2];
  std::int64_t queued = 0;
  set_batch(batch);
  decoded_.clear();  // the memory is a token ahead of the sequences from now on
  const auto queue = [&] {
    run(exe);
    for (auto* q : batch) ++q->done;
    memory_.deliver_and_advance(stream_, ids_.as<std::int32_t>() + queued % 2 * n, next);
    found[queued++ % 2].record(stream_);
  };
  queue();
  bool more = true;
  for (std::int64_t i = 0; i < queued; ++i) {
    if (more && queued < steps) queue();
    found[i % 2].wait(reader);
    reader.synchronize();
    for (std::size_t r = 0; r < batch.size(); ++r) {
      auto& q = *batch[r];
      if (q.ended) continue;  // a token after its last one
      const std::int32_t id = ids_.as<std::int32_t>()[i % 2 * n + static_cast<std::int64_t>(r)];
      if (id >= 0) take(q, {.id = id});
      else
        end(q, End::Reason::failed,
            fmt::format("[generate] the logit of token {} is no finite number: the weights hold NaN or overflow; check "
                        "them with `hpcdl inspect --check`",
                        -1 - id));
      more = more && !q.ended;
    }
  }
  stream_.synchronize();
}

}  // namespace hpcdl::infer
