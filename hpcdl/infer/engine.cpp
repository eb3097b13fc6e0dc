#include "hpcdl/infer/engine.h"

#include <algorithm>
#include <utility>

#include "hpcdl/core/error.h"
#include "hpcdl/infer/model_drafter.h"
#include "hpcdl/infer/ngram_drafter.h"

namespace hpcdl::infer {

namespace {

void check_ranks_of(const EngineOptions& o, const models::LanguageModel& model) {
  const auto* s = model.sharing();
  require(s ? o.ranks && o.ranks->ranks().size() == s->size() : !o.ranks, "engine",
          "a model that {} ranks share needs the link between them, and no other model has one: found {}",
          s ? s->size() : 1, o.ranks ? fmt::format("a link of {} ranks", o.ranks->ranks().size()) : "none");
  if (!s) return;
  require(o.ranks->leads(), "engine", "rank 0 of those that share a model has the engine; rank {} must follow it",
          s->rank);
  require(s->scheme == nn::Sharing::conjugate, "engine",
          "ranks that generate share a model by the scheme conjugate, found {}", nn::scheme_name(s->scheme));
}

EngineOptions completed(EngineOptions o, const models::LanguageModel& model) {
  const auto context = model.config().context;
  if (o.context == 0) o.context = context;
  require(o.context >= 1 && o.context <= context, "generate",
          "{} tokens do not fit into the model's context of {}: ask for fewer, or shorten the prompt", o.context,
          context);
  if (o.budget == 0) o.budget = usual_budget(model.device(), o.sequences);
  require(o.sequences >= 1 && o.budget >= o.sequences + kLeastChunk, "engine",
          "{} sequences at a time need a budget of at least {} tokens a step, got {}", o.sequences,
          o.sequences + kLeastChunk, o.budget);
  require(o.vocab >= 0 && o.vocab <= model.config().vocab, "engine",
          "the tokenizer has {} tokens, the model {}: tokenizer and model do not belong together", o.vocab,
          model.config().vocab);
  if (o.vocab == 0) o.vocab = model.config().vocab;
  o.kv_window.check("engine", o.context);
  require(!o.kv_window.any() || !o.speculation.draft, "engine",
          "a draft model keeps all keys of a text, so that kv-window excludes it: let n-grams propose tokens");
  if (o.pages == 0) o.pages = o.sequences * (o.kv_window.any() ? o.kv_window.pages() : pages_for(o.context));
  require(o.pages >= 1, "engine", "expected a number of pages, got {}", o.pages);
  o.budget = std::min(o.budget, o.sequences * o.context);
  check_ranks_of(o, model);
  return o;
}

PackedPasses::Sizes sizes_of(const EngineOptions& o, const models::LanguageModel& model) {
  const bool drops = o.kv_window.any();  // then layers with a window have no pages of their own
  return {.context = o.context,
          .text_pages = drops ? o.kv_window.pages() : pages_for(o.context),
          .sequences = o.sequences,
          .pages = o.pages,
          .window_pages = drops ? 0 : window_pages(model.config(), o.pages, o.sequences, o.budget),
          .budget = o.budget,
          .vocab = o.vocab,
          .kv = o.kv,
          .numerics = o.numerics};
}

std::unique_ptr<Drafter> drafter_of(const EngineOptions& o, const models::LanguageModel& model, Pool& pool) {
  const auto* draft = o.speculation.draft;
  require(!(draft && o.speculation.ngrams), "engine", "a draft model and n-grams exclude each other: choose one");
  if (o.speculation.ngrams) return std::make_unique<NgramDrafter>();
  if (!draft) return nullptr;
  require(draft->config().vocab >= o.vocab, "engine",
          "the draft model has {} tokens, the model {}: it needs the same vocabulary", draft->config().vocab, o.vocab);
  require(draft->device() == model.device(), "engine", "the draft model must be on the device of the model");
  require(!draft->sharing(), "engine", "the draft model must be a whole one: rank 0 alone proposes");
  return std::make_unique<ModelDrafter>(*draft, pool, sizes_of(o, model));
}

}  // namespace

Engine::Engine(const models::LanguageModel& model, Pool& pool, const EngineOptions& options)
    : model_(model),
      options_(completed(options, model)),
      dtype_(type_of_inference(model)),
      table_(options_.pages),
      passes_(model, pool, sizes_of(options_, model), options_.ranks),
      drafter_(drafter_of(options_, model, pool)) {
  if (const auto pages = sizes_of(options_, model).window_pages; pages > 0) windows_.emplace(pages, options_.pages);
  // A GPU refuses some ops: before there is any text.
  if (options_.numerics.row_invariant && model.device().is_cuda()) passes_.programs(1);
}

EngineState Engine::state() const {
  EngineState s = done_;
  s.waiting = std::ssize(waiting_), s.running = std::ssize(running_);
  s.pages = table_.pages(), s.free_pages = table_.free_pages(), s.cached_pages = table_.cached_pages();
  if (windows_) s.window_pages = windows_->pages(), s.free_window_pages = windows_->free_pages();
  s.programs = passes_.recorded();
  return s;
}

// -- texts

RequestId Engine::submit(Request request) {
  const auto vocab = model_.config().vocab;
  request.sampling.check(vocab);
  request.tokens = std::max(0, request.tokens);
  const auto length = std::ssize(request.prompt), most = length + request.tokens;
  require(length > 0, "generate", "the prompt is empty: give at least one token");
  const auto& window = options_.kv_window;
  require(window.any() || most <= options_.context, "generate",
          "{} prompt tokens and {} new ones do not fit: there is room for {}", length, request.tokens,
          options_.context);
  require(request.prompt_logprobs < 0 || length <= options_.context, "generate",
          "log-probabilities of {} prompt tokens: there are such of {} at most, which the context holds", length,
          options_.context);
  const auto adapters = std::ssize(model_.adapters());
  require(request.adapter >= -1 && request.adapter < adapters, "generate",
          "the text asks for adapter {}, and the model has {}: expected less, or -1 for none", request.adapter,
          adapters);
  for (auto id : request.prompt)
    require(id >= 0 && id < vocab, "generate",
            "token {} is not in the model's vocabulary of {}: tokenizer and model do not belong together", id, vocab);
  const auto pages = window.any() ? std::min(window.pages(), pages_for(most)) : pages_for(most);
  require(pages <= options_.pages, "generate", "{} tokens need {} pages of keys and values, the engine has {}", most,
          pages, options_.pages);
  auto q = std::make_unique<Sequence>();
  q->id = ++last_id_;
  q->tokens = std::move(request.prompt);
  q->request = std::move(request);
  if (q->request.sampling.has_penalties()) q->counts.add_prompt(q->tokens);
  if (window.any()) window.shorten(q->tokens, options_.context);
  q->salt = fmt::format("{} {}", q->request.adapter, q->request.cache_salt);  // keys depend on the adapter
  q->hashes = PageHashes(q->salt), q->hashes.extend(q->tokens);
  q->end.stats.prompt_tokens = static_cast<int>(length);
  q->submitted = Clock::now();
  q->ended = q->request.tokens == 0 && !q->wants_prompt_logprobs();
  insert(waiting_, std::move(q));
  return last_id_;
}

void Engine::insert(Queue& queue, std::unique_ptr<Sequence> q) {
  const auto place = std::find_if(queue.rbegin(), queue.rend(), [&](const auto& other) {
    const auto mine = q->request.priority, theirs = other->request.priority;
    return theirs > mine || (theirs == mine && other->id < q->id);
  });
  queue.insert(place.base(), std::move(q));
}

std::unique_ptr<Engine::Sequence> Engine::remove(Queue& queue, const Sequence* q) {
  const auto at = std::ranges::find(queue, q, &std::unique_ptr<Sequence>::get);
  auto removed = std::move(*at);
  queue.erase(at);
  return removed;
}

bool Engine::cancel(RequestId id) {
  for (auto* queue : {&waiting_, &running_})
    for (auto& q : *queue)
      if (q->id == id && !q->ended) {
        end(*q, End::Reason::cancelled);
        if (!stepping_) remove_ended();
        return true;
      }
  return false;
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
    for (auto& q : running_) release(*q);
    waiting_.clear(), running_.clear();
    throw;
  }
  return true;
}

/// Texts whose context is full go on with their sinks and windows, when others leave them pages for it.
void Engine::restart_full() {
  if (!options_.kv_window.any()) return;
  std::vector<const Sequence*> full;
  for (const auto& q : running_)
    if (std::ssize(q->tokens) > options_.context) full.push_back(q.get());
  for (const auto* text : full) {
    auto q = remove(running_, text);
    release(*q);
    options_.kv_window.shorten(q->tokens, options_.context);
    q->hashes = PageHashes(q->salt), q->hashes.extend(q->tokens);
    insert(waiting_, std::move(q));
  }
}

/// The time of its first token.
double Engine::due(const Sequence& q) const {
  if (q.end.stats.new_tokens > 0) return -kNotDue;
  if (options_.deadlines.first_token == 0) return kNotDue;
  return std::chrono::duration<double>(q.submitted - start_).count() + options_.deadlines.first_token;
}

Limits Engine::limits() const {
  return {.sequences = options_.sequences, .budget = options_.budget, .deadlines = options_.deadlines, .cost = cost_};
}

/// Those of a higher priority come first; without deadlines, in the order of their arrival.
std::vector<Engine::Sequence*> Engine::waiting_by_urgency() const {
  std::vector<Sequence*> list;
  for (const auto& q : waiting_) list.push_back(q.get());
  if (!options_.deadlines.any()) return list;
  std::vector<Prompt> prompts;
  for (const auto* q : list) prompts.push_back({.pending = q->pending(), .due = due(*q)});
  std::vector<Sequence*> ordered;
  const auto singles = std::ranges::count_if(running_, [](const auto& q) { return q->pending() == 1; });
  for (const auto i : by_urgency(prompts, limits(), singles, now()).order) ordered.push_back(list[i]);
  std::ranges::stable_sort(ordered, std::greater(), [](const Sequence* q) { return q->request.priority; });
  return ordered;
}

/// The texts that could begin. One whose next page another one is about to fill waits for it.
std::vector<Engine::Candidate> Engine::candidates() const {
  const auto most = options_.sequences - std::ssize(running_);
  std::int64_t tokens = 0;  // more than the budget cannot begin
  std::vector<Candidate> list;
  if (most <= 0 || waiting_.empty()) return list;
  using Next = std::pair<PageTable::Entry, std::span<const std::int32_t>>;
  std::vector<std::pair<const Sequence*, Next>> next;
  const auto next_page = [](const Sequence& q, std::int64_t pages, PageTable::Entry parent) {
    const auto begin = static_cast<std::size_t>(pages * kPageTokens), count = static_cast<std::size_t>(kPageTokens);
    return Next{parent, begin + count < q.tokens.size() ? std::span(q.tokens).subspan(begin, count)
                                                        : std::span<const std::int32_t>()};
  };
  const auto is_coming = [&](const Sequence& q, const Next& n) {
    return options_.reuse_prefixes && !n.second.empty() && std::ranges::any_of(next, [&](const auto& other) {
             return other.second.first == n.first && std::ranges::equal(other.second.second, n.second) &&
                    other.first->salt == q.salt;
           });
  };
  for (const auto& q : running_) next.emplace_back(q.get(), next_page(*q, q->published, q->parent));
  for (auto* q : waiting_by_urgency()) {
    if (std::ssize(list) == most || tokens >= options_.budget) break;
    auto found = find(*q);
    const auto n = next_page(*q, found.full(), found.last);
    if (!q->wants_prompt_logprobs() && is_coming(*q, n)) break;
    next.emplace_back(q, n);
    tokens += std::ssize(q->tokens) - found.full() * kPageTokens - found.tokens;
    list.push_back({q, std::move(found)});
  }
  return list;
}

Schedule Engine::plan(const std::vector<Candidate>& candidates) const {
  const auto most = [&](const Sequence& q) {
    return q.wants_prompt_logprobs() ? std::min(kLeastChunk, room(q)) : room(q);  // whose logits take memory
  };
  // Counting the pages of long texts takes time, so it is done only where some might be preempted.
  const bool is_short = table_.available_pages() < std::ssize(running_) + pages_for(options_.budget);
  std::vector<Queues::Running> running;
  for (const auto& q : running_) {
    const auto pending = std::min(q->pending(), room(*q));
    running.push_back(
        {.done = q->keys(),
         .pending = pending,
         .pages = std::ssize(q->pages),
         .own = is_short ? std::ranges::count_if(q->pages, [&](auto page) { return table_.is_own(page); }) : 0,
         .later = most_pages(*q) - pages_for(q->keys() + pending),
         .most = most(*q),
         .due = due(*q)});
  }
  std::vector<Queues::Waiting> waiting;
  for (const auto& [q, found] : candidates) {
    const auto held = std::ranges::count_if(found.pages, [&](auto page) { return !table_.is_idle(page); });
    const auto all = std::min(pages_for(std::ssize(q->tokens) + 1), most_pages(*q));
    const auto done = found.full() * kPageTokens + found.tokens;
    waiting.push_back({.pending = std::ssize(q->tokens) - done,
                       .pages = all - held,
                       .later = most_pages(*q) - all,
                       .most = most(*q),
                       .due = due(*q)});
  }
  return schedule({.running = running, .waiting = waiting, .available_pages = table_.available_pages()}, limits(),
                  options_.deadlines.any() ? now() : 0);
}

void Engine::advance_all() {
  remove_ended();
  restart_full();
  const auto waiting = candidates();
  const auto planned = plan(waiting);
  std::vector<Sequence*> texts;
  for (const auto& q : running_) texts.push_back(q.get());
  for (std::size_t i = 0; i < planned.preempted; ++i) {
    auto q = std::move(running_.back());
    running_.pop_back();
    release(*q);
    ++q->end.stats.preemptions, ++done_.preemptions;
    insert(waiting_, std::move(q));
  }
  for (std::size_t i = 0; i < planned.admitted; ++i)  // before any page is taken, or it might be one of these
    hold(*waiting[i].text, waiting[i].found);
  std::vector<Part> parts;
  for (std::size_t i = 0; i < planned.chunks.size(); ++i)
    if (const auto [at, tokens] = planned.chunks[i]; at < texts.size()) {
      grow(*texts[at], tokens);
      parts.push_back({texts[at], tokens});
    }
  for (std::size_t i = 0; i < planned.admitted; ++i) {
    auto q = remove(waiting_, waiting[i].text);
    begin(*q, waiting[i].found);
    const auto& chunk = planned.chunks[planned.chunks.size() - planned.admitted + i];
    parts.push_back({q.get(), std::min({chunk.tokens, q->pending(), room(*q)})});
    grow(*q, parts.back().tokens);
    insert(running_, std::move(q));
  }
  if (parts.empty()) return;
  speculate(parts);
  // A text that can begin with the next pass does not wait for passes that are queued ahead.
  const bool more_begin =
      !waiting_.empty() && planned.admitted == waiting.size() && std::ssize(running_) < options_.sequences;
  const auto steps = more_begin ? 1 : steps_ahead(parts);
  if (steps > 1) pass_ahead(parts, steps);
  else pass(parts);
  remove_ended();
}

void Engine::end(Sequence& q, End::Reason reason, std::string message) {
  q.ended = true;
  q.end.reason = reason;
  q.end.message = std::move(message);
}

void Engine::remove_ended() {
  Queue gone;
  for (auto* queue : {&running_, &waiting_}) {
    for (auto& q : *queue)
      if (q->ended) gone.push_back(std::move(q));
    std::erase(*queue, nullptr);
  }
  for (auto& q : gone) release(*q);
  for (auto& q : gone) {
    auto& s = q->end.stats;
    if (s.new_tokens > 0)
      s.tokens_per_second =
          s.new_tokens > 1 ? (s.new_tokens - 1) / seconds_since(q->first) : 1e3 / s.time_to_first_token_ms;
    if (q->request.on_end) q->request.on_end(q->end);
  }
}

}  // namespace hpcdl::infer
