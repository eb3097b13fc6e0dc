#include "hpcdl/infer/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "hpcdl/core/error.h"

namespace hpcdl::infer {

namespace {

constexpr std::size_t kMostPrograms = 256, kMostCandidates = 32;

std::int64_t power_of_two(std::int64_t n) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(n)));
}

EngineOptions completed(EngineOptions o, const models::LanguageModel& model) {
  const auto context = model.config().context;
  if (o.context == 0) o.context = context;
  require(o.context >= 1 && o.context <= context, "generate",
          "{} tokens do not fit into the model's context of {}: ask for fewer, or shorten the prompt", o.context,
          context);
  require(o.sequences >= 1 && o.budget >= o.sequences + kLeastChunk, "engine",
          "{} sequences at a time need a budget of at least {} tokens a step, got {}", o.sequences,
          o.sequences + kLeastChunk, o.budget);
  require(o.vocab >= 0 && o.vocab <= model.config().vocab, "engine",
          "the tokenizer has {} tokens, the model {}: tokenizer and model do not belong together", o.vocab,
          model.config().vocab);
  if (o.vocab == 0) o.vocab = model.config().vocab;
  if (o.pages == 0) o.pages = o.sequences * pages_for(o.context);
  require(o.pages >= 1, "engine", "expected a number of pages, got {}", o.pages);
  o.budget = std::min(o.budget, o.sequences * o.context);
  return o;
}

BatchLayout largest(const EngineOptions& o) {
  const auto tokens = power_of_two(std::max(o.budget, o.sequences));
  return {.tokens = tokens,
          .sequences = power_of_two(o.sequences + padding_rows(tokens / 2)),
          .pages = pages_for(o.context)};
}

}  // namespace

Engine::Engine(const models::LanguageModel& model, Pool& pool, const EngineOptions& options)
    : model_(model),
      stream_(model.device(), pool),
      options_(completed(options, model)),
      dtype_(type_of_inference(model)),
      pool_(model.config().layers, pool_spec(model, options_.pages, options_.kv), model.device()),
      table_(options_.pages),
      memory_(largest(options_), model.device()),
      ids_(2 * largest(options_).tokens * std::int64_t{sizeof(std::int32_t)}, model.device()) {}

EngineState Engine::state() const {
  EngineState s = done_;
  s.waiting = std::ssize(waiting_), s.running = std::ssize(running_);
  s.pages = table_.pages(), s.free_pages = table_.free_pages(), s.cached_pages = table_.cached_pages();
  return s;
}

// -- texts

RequestId Engine::submit(Request request) {
  const auto vocab = model_.config().vocab;
  request.sampling.check(vocab);
  request.tokens = std::max(0, request.tokens);
  const auto length = std::ssize(request.prompt), most = length + request.tokens;
  require(length > 0, "generate", "the prompt is empty: give at least one token");
  require(most <= options_.context, "generate", "{} prompt tokens and {} new ones do not fit: there is room for {}",
          length, request.tokens, options_.context);
  for (auto id : request.prompt)
    require(id >= 0 && id < vocab, "generate",
            "token {} is not in the model's vocabulary of {}: tokenizer and model do not belong together", id, vocab);
  require(pages_for(most) <= options_.pages, "generate",
          "{} tokens need {} pages of keys and values, the engine has {}", most, pages_for(most), options_.pages);
  auto q = std::make_unique<Sequence>();
  q->id = ++last_id_;
  q->tokens = std::move(request.prompt);
  q->request = std::move(request);
  if (q->request.sampling.has_penalties()) q->counts.add_prompt(q->tokens);
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

/// The keys and values of its first tokens that are there; the last token is always left, for its logits.
PageTable::Found Engine::find(const Sequence& q) const {
  if (!options_.reuse_prefixes || q.wants_prompt_logprobs()) return {};
  return table_.find(std::span(q.tokens).first(q.tokens.size() - 1), q.request.cache_salt);
}

/// `found` is what the waiting texts find that could begin.
Schedule Engine::plan(std::vector<PageTable::Found>& found) const {
  const auto most = [](const Sequence& q) {
    return q.wants_prompt_logprobs() ? kLeastChunk : std::int64_t{1} << 40;  // whose logits take memory
  };
  // Counting the pages of long texts takes time, so it is done only where some might be preempted.
  const bool is_short = table_.available_pages() < std::ssize(running_) + pages_for(options_.budget);
  const auto most_pages = [](const Sequence& q) { return pages_for(q.end.stats.prompt_tokens + q.request.tokens); };
  std::vector<Queues::Running> running;
  for (const auto& q : running_)
    running.push_back(
        {.done = q->done,
         .pending = q->pending(),
         .pages = std::ssize(q->pages),
         .own = is_short ? std::ranges::count_if(q->pages, [&](auto page) { return table_.is_own(page); }) : 0,
         .later = most_pages(*q) - pages_for(std::ssize(q->tokens)),
         .most = most(*q)});
  // A text whose next page another one is about to fill waits for it.
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
                    other.first->request.cache_salt == q.request.cache_salt;
           });
  };
  for (const auto& q : running_) next.emplace_back(q.get(), next_page(*q, q->published, q->parent));
  std::vector<Queues::Waiting> waiting;
  for (const auto& q : waiting_) {
    if (waiting.size() == kMostCandidates || std::ssize(running_) + std::ssize(waiting) >= options_.sequences) break;
    auto there = find(*q);
    const auto full = std::ssize(there.pages);
    const auto n = next_page(*q, full, there.last);
    if (!q->wants_prompt_logprobs() && is_coming(*q, n)) break;
    next.emplace_back(q.get(), n);
    const auto held = std::ranges::count_if(there.pages, [&](auto page) { return !table_.is_idle(page); });
    const auto all = std::min(pages_for(std::ssize(q->tokens) + 1), most_pages(*q));
    waiting.push_back({.pending = std::ssize(q->tokens) - full * kPageTokens - there.tokens,
                       .pages = all - held,
                       .later = most_pages(*q) - all,
                       .most = most(*q)});
    found.push_back(std::move(there));
  }
  return schedule({.running = running, .waiting = waiting, .available_pages = table_.available_pages()},
                  {.sequences = options_.sequences, .budget = options_.budget});
}

void Engine::advance_all() {
  remove_ended();
  std::vector<PageTable::Found> found;
  const auto planned = plan(found);
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
    for (const auto page : found[i].pages) table_.hold(page);
  std::vector<Part> parts;
  for (std::size_t i = 0; i < planned.chunks.size(); ++i)
    if (const auto [at, tokens] = planned.chunks[i]; at < texts.size()) {
      grow(*texts[at], tokens);
      parts.push_back({texts[at], tokens});
    }
  for (std::size_t i = 0; i < planned.admitted; ++i) {
    auto q = std::move(waiting_.front());
    waiting_.pop_front();
    begin(*q, found[i]);
    const auto& chunk = planned.chunks[planned.chunks.size() - planned.admitted + i];
    parts.push_back({q.get(), std::min(chunk.tokens, q->pending())});
    grow(*q, parts.back().tokens);
    insert(running_, std::move(q));
  }
  if (parts.empty()) return;
  const auto steps = steps_ahead(parts);
  if (steps > 1) pass_ahead(parts, steps);
  else pass(parts);
  remove_ended();
}

void Engine::begin(Sequence& q, const PageTable::Found& found) {
  q.pages = found.pages;
  q.published = std::ssize(q.pages), q.parent = found.last;
  q.done = q.published * kPageTokens;
  if (table_.has_partial(found) && (table_.available_pages() > 1 || !table_.is_idle(found.partial))) {
    table_.hold(found.partial);
    q.pages.push_back(table_.take());
    pool_.copy_page(stream_, q.pages.back(), found.partial);
    table_.release(found.partial);
    q.done += found.tokens;
  }
  auto& stats = q.end.stats;
  if (std::exchange(q.begun, true)) return;  // it was preempted
  stats.cached_tokens = static_cast<int>(std::min<std::int64_t>(q.done, stats.prompt_tokens));
  done_.prompt_tokens += stats.prompt_tokens, done_.cached_tokens += stats.cached_tokens;
}

/// Pages for this many more tokens.
void Engine::grow(Sequence& q, std::int64_t tokens) {
  while (std::ssize(q.pages) < pages_for(q.done + tokens)) q.pages.push_back(table_.take()), single_.clear();
}

/// Lets other texts find its pages that are full.
void Engine::publish(Sequence& q) {
  if (!options_.reuse_prefixes) return;
  const auto known = std::min<std::int64_t>(q.done, std::ssize(q.tokens));
  for (; (q.published + 1) * kPageTokens <= known; ++q.published)
    q.parent = table_.publish(q.pages[static_cast<std::size_t>(q.published)], q.parent,
                              std::span(q.tokens).subspan(static_cast<std::size_t>(q.published * kPageTokens),
                                                          static_cast<std::size_t>(kPageTokens)),
                              q.request.cache_salt);
}

/// Gives its pages back; others find its tokens in them, also those of the last page.
void Engine::release(Sequence& q) {
  if (options_.reuse_prefixes && q.end.reason != End::Reason::failed) {
    publish(q);
    const auto begin = q.published * kPageTokens, known = std::min<std::int64_t>(q.done, std::ssize(q.tokens));
    if (begin < known)
      table_.publish(
          q.pages[static_cast<std::size_t>(q.published)], q.parent,
          std::span(q.tokens).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(known - begin)),
          q.request.cache_salt);
  }
  for (; !q.pages.empty(); q.pages.pop_back()) table_.release(q.pages.back());
  q.done = q.published = 0, q.parent = 0;
  single_.clear();
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

// -- passes

/// Numbers of tokens that there are programs for, at most an eighth apart; on a GPU, which captures them, fewer small
/// ones.
std::int64_t Engine::bucket(std::int64_t tokens) const {
  const auto power = power_of_two(tokens);
  if (stream_.device().is_cuda() && tokens <= kLeastChunk) return power;
  const auto apart = std::max<std::int64_t>(1, power / 16);
  return (tokens + apart - 1) / apart * apart;
}

BatchLayout Engine::layout(std::int64_t tokens, std::int64_t sequences, bool single, BatchLayout::Head head) const {
  const auto all = bucket(tokens);
  return {.tokens = all,
          .sequences = single ? all : power_of_two(sequences + padding_rows(all - tokens)),
          .pages = pages_for(options_.context),
          .pool_pages = options_.pages,
          .head = head,
          .single = single,
          .vocab = options_.vocab,
          .kv = options_.kv};
}

BatchLayout Engine::layout_of(const std::vector<Part>& parts) const {
  std::int64_t tokens = 0;
  bool single = true;
  auto head = BatchLayout::Head::none;
  for (const auto& [q, n] : parts) {
    tokens += n;
    single = single && n == 1;
    if (q->wants_prompt_logprobs()) head = BatchLayout::Head::all;
    else if (n == q->pending() && head == BatchLayout::Head::none) head = BatchLayout::Head::last;
  }
  if (single) head = BatchLayout::Head::all;
  return layout(tokens, std::ssize(parts), single, head);
}

/// In the shared arena. A larger one replaces it together with the programs in it, so that there is never more than one.
Engine::Program& Engine::program(const BatchLayout& l) {
  const ProgramKey key(l.tokens, l.sequences, l.single, static_cast<int>(l.head));
  if (const auto found = programs_.find(key); found != programs_.end()) {
    found->second.used = ++passes_;
    return found->second;
  }
  if (programs_.size() >= kMostPrograms) {
    stream_.synchronize();
    programs_.erase(std::ranges::min_element(programs_, {}, [](const auto& p) { return p.second.used; }));
  }
  const auto made = batch_pass(model_, l, options_.numerics);
  auto bindings = made->bindings;
  pool_.bind(bindings);
  memory_.bind(l, bindings);
  if (arena_ && arena_->bytes() < made->planned->plan.arena_bytes) {
    stream_.synchronize();
    programs_.clear(), arena_.reset();
  }
  Instance instance(made->planned, std::move(bindings), arena_, stream_.device());
  arena_ = instance.arena();
  return programs_.emplace(key, Program{std::move(instance), ++passes_}).first->second;
}

/// On a GPU, one launch from the second run on: launching its kernels one by one takes longer than they run.
void Engine::run(Program& p) {
  if (stream_.device().is_cuda() && !p.instance.captured()) {
    if (p.warm) p.instance.capture(stream_);
    p.warm = true;
  }
  p.instance.run(stream_);
}

std::vector<const Instance*> Engine::programs(std::int64_t prompt_tokens) {
  std::vector<BatchLayout> list{layout(1, 1, true, BatchLayout::Head::all)};
  for (auto left = prompt_tokens; left > 1; left -= options_.budget) {
    const auto tokens = std::min(left, options_.budget);
    const auto l = layout(tokens, 1, tokens == 1, tokens < left ? BatchLayout::Head::none : BatchLayout::Head::last);
    if (std::find(list.begin(), list.end(), l) == list.end()) list.push_back(l);
  }
  for (const auto& l : list) program(l);  // a larger arena may replace those before it
  std::vector<const Instance*> made;
  for (const auto& l : list) made.push_back(&program(l).instance);
  return made;
}

std::span<float> Engine::on_host(const Tensor& logits) {
  if (!logits.device().is_cuda()) return {logits.ptr<float>(), static_cast<std::size_t>(logits.size())};
  if (logits_.bytes() < logits.bytes()) logits_ = Pinned(logits.bytes(), stream_.device());
  copy_to_pinned(stream_, logits_.data(), logits);
  stream_.synchronize();
  return {logits_.as<float>(), static_cast<std::size_t>(logits.size())};
}

/// Runs a pass over the next tokens of these texts, or queues it on a GPU.
Engine::Program& Engine::start(const std::vector<Part>& parts, const BatchLayout& l) {
  Program& p = program(l);
  std::vector<BatchRow> rows;
  std::vector<Sequence*> texts;
  ids_of_pass_.clear();
  for (const auto& [q, n] : parts) {
    const auto begin = q->tokens.begin() + static_cast<std::ptrdiff_t>(q->done);
    ids_of_pass_.insert(ids_of_pass_.end(), begin, begin + static_cast<std::ptrdiff_t>(n));
    rows.push_back({q->pages, q->done, n});
    texts.push_back(q);
  }
  ids_of_pass_.resize(static_cast<std::size_t>(l.tokens));
  if (l.single && texts == single_) memory_.advance(stream_);
  else memory_.set(stream_, l, rows);
  single_ = l.single ? std::move(texts) : std::vector<Sequence*>();
  if (stream_.device().is_cuda() && l.rows() > 0) {
    std::vector<SampleRule> rules(static_cast<std::size_t>(l.rows()));
    std::size_t row = 0;
    for (const auto& [q, n] : parts) {
      row += static_cast<std::size_t>(l.head == BatchLayout::Head::all ? n : 1);
      rules[row - 1] = q->request.sampling.rule(static_cast<std::uint64_t>(q->end.stats.new_tokens));
    }
    memory_.set_rules(stream_, rules);
  }
  const Tensor tokens = p.instance.input(0);
  copy(stream_, tokens, View(ids_of_pass_.data(), tokens.spec()));
  run(p);
  return p;
}

void Engine::pass(const std::vector<Part>& parts) {
  const auto l = layout_of(parts);
  const Instance& exe = start(parts, l).instance;
  const bool found = l.head != BatchLayout::Head::none &&
                     std::ranges::all_of(parts, [&](const Part& p) { return chosen_on_gpu(*p.text); });
  std::span<float> logits;
  if (found) {
    copy_to_pinned(stream_, ids_.data(), exe.output(1));
    stream_.synchronize();
  } else if (l.head != BatchLayout::Head::none) {
    logits = on_host(exe.output(0));
  }
  const auto width = l.head == BatchLayout::Head::none ? 0 : static_cast<std::size_t>(exe.output(0)[-1]);
  std::size_t row = 0;
  for (const auto& part : parts) {
    auto& q = *part.text;
    const auto first = row;
    row += static_cast<std::size_t>(l.head == BatchLayout::Head::all ? part.tokens : 1);
    const bool last = part.tokens == q.pending();
    if (!q.ended && q.wants_prompt_logprobs()) score_prompt(q, part.tokens, logits.subspan(first * width), width);
    q.done += part.tokens;
    publish(q);
    if (!last || q.ended) continue;
    if (q.request.tokens == 0) end(q, End::Reason::length);
    else if (found) take_chosen(q, ids_.as<std::int32_t>()[row - 1]);
    else choose(q, logits.subspan((row - 1) * width, width));
  }
}

/// Passes that a GPU can queue before the host reads their tokens.
std::int64_t Engine::steps_ahead(const std::vector<Part>& parts) const {
  std::int64_t steps = kAhead, pages = 0;
  for (const auto& [q, n] : parts) {
    if (q->pending() > 1 || !chosen_on_gpu(*q)) return 1;
    steps = std::min<std::int64_t>(steps, q->request.tokens - q->end.stats.new_tokens);
  }
  for (const auto& [q, n] : parts) pages += pages_for(q->done + steps) - std::ssize(q->pages);
  return pages <= table_.available_pages() ? steps : 1;
}

/// Up to `steps` tokens of each text on a GPU, whose passes read their tokens and count positions on the
/// device: each is queued before the host reads the tokens of the previous one. Ends when a text does.
void Engine::pass_ahead(const std::vector<Part>& parts, std::int64_t steps) {
  const auto l = layout_of(parts);
  for (const auto& [q, n] : parts) grow(*q, steps);
  Stream reader(stream_.device(), stream_.pool());
  Event found[2];
  Program& p = start(parts, l);
  single_.clear();  // the memory is a token ahead of the texts from now on
  const Tensor next = p.instance.input(0);
  std::int64_t queued = 0;
  const auto deliver = [&] {
    for (const auto& [q, n] : parts) ++q->done;
    memory_.deliver_and_advance(stream_, ids_.as<std::int32_t>() + queued % 2 * l.tokens, next);
    found[queued++ % 2].record(stream_);
  };
  deliver();
  bool more = true;
  for (std::int64_t i = 0; i < queued; ++i) {
    more = more && !(interrupted_ && interrupted_());
    if (more && queued < steps) run(p), deliver();
    found[i % 2].wait(reader);
    reader.synchronize();
    const auto* ids = ids_.as<std::int32_t>() + i % 2 * l.tokens;
    for (std::size_t r = 0; r < parts.size(); ++r) {
      auto& q = *parts[r].text;
      if (!q.ended) take_chosen(q, ids[r]);  // otherwise it is a token after the last one
      more = more && !q.ended;
    }
  }
  stream_.synchronize();
  for (const auto& [q, n] : parts) publish(*q);
}

// -- tokens

void Engine::score_prompt(Sequence& q, std::int64_t tokens, std::span<const float> logits, std::size_t width) {
  auto& scored = q.end.prompt_logprobs;
  try {
    for (std::int64_t i = 0; i < tokens && q.wants_prompt_logprobs(); ++i)
      if (q.done + i == std::ssize(scored))
        scored.push_back(sampler_.logprobs(logits.subspan(static_cast<std::size_t>(i) * width, width),
                                           q.tokens[scored.size() + 1], q.request.prompt_logprobs));
  } catch (const Error& e) {
    end(q, End::Reason::failed, e.what());
  }
}

/// Whether a GPU chooses its tokens, so that logits stay there.
bool Engine::chosen_on_gpu(const Sequence& q) const {
  return stream_.device().is_cuda() && q.request.sampling.fits_device() && !q.request.constraint &&
         !q.wants_prompt_logprobs();
}

/// The next token of a text, from the logits after its last one.
void Engine::choose(Sequence& q, std::span<float> logits) {
  const auto& o = q.request.sampling;
  Token token;
  try {
    const std::vector<float> unchanged(logits.begin(), o.logprobs >= 0 ? logits.end() : logits.begin());
    token.id = sampler_.sample(logits.first(static_cast<std::size_t>(options_.vocab)), o,
                               {.index = static_cast<std::uint64_t>(q.end.stats.new_tokens),
                                .counts = &q.counts,
                                .eos = model_.config().eos,
                                .constraint = q.request.constraint.get()});
    if (o.logprobs >= 0) token = sampler_.logprobs(unchanged, token.id, o.logprobs);
    if (q.request.constraint) q.request.constraint->accept(token.id);
  } catch (const Error& e) {
    return end(q, End::Reason::failed, e.what());
  }
  take(q, token);
}

void Engine::take_chosen(Sequence& q, std::int32_t id) {
  if (id >= 0) return take(q, {.id = id});
  end(q, End::Reason::failed,
      fmt::format("[generate] the logit of token {} is no finite number: the weights hold NaN or overflow; check them "
                  "with `hpcdl inspect --check`",
                  -1 - id));
}

void Engine::take(Sequence& q, const Token& token) {
  const auto& o = q.request.sampling;
  auto& s = q.end.stats;
  q.tokens.push_back(token.id);
  ++done_.new_tokens;
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

}  // namespace hpcdl::infer
