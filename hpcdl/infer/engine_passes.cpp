// The passes of an engine, and what it does with their logits.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "hpcdl/core/error.h"
#include "hpcdl/infer/engine.h"
#include "hpcdl/ops/logprobs/logprobs.h"

namespace hpcdl::infer {

namespace {

/// Tokens that one pass checks beside those that are known. On a CPU the time of a pass soon grows with them.
constexpr std::int64_t kMostCheckedOnCpu = 16, kMostCheckedOnGpu = 64;
/// Passes that a GPU queues ahead where the next tokens may allow a proposal.
constexpr std::int64_t kAheadOfProposals = 4;

/// `id`: instead of one, as a GPU finds it in logits without a largest one.
std::string not_finite(std::int32_t id) {
  return fmt::format(
      "[generate] the logit of token {} is no finite number: the weights hold NaN or overflow; check them "
      "with `hpcdl inspect --check`",
      id == kNoToken ? 0 : -1 - id);
}

}  // namespace

/// Proposes tokens of texts that continue, as far as budget and pages go.
void Engine::speculate(std::vector<Part>& parts) {
  if (!drafter_) return;
  std::vector<Part*> single;
  auto left = options_.budget;
  for (auto& p : parts) {
    left -= p.tokens;
    const auto& q = *p.text;
    // The masks of a constraint after each proposed token would need logits on the host.
    const bool constrained = q.request.constraint && passes_.stream().device().is_cuda();
    if (q.pending() == 1 && !q.wants_prompt_logprobs() && !constrained) single.push_back(&p);
  }
  if (single.empty()) return;
  const auto most = passes_.stream().device().is_cuda() ? kMostCheckedOnGpu : kMostCheckedOnCpu;
  const auto share = std::min(left, most - std::ssize(single)) / std::ssize(single);
  auto pages = table_.available_pages();
  std::vector<Drafter::Text> texts;
  std::vector<Part*> whose;
  for (auto* p : single) {
    const auto& q = *p->text;
    const auto there = std::ssize(q.pages), in_pages = (there + pages) * kPageTokens - q.keys() - 1;
    const auto n =
        std::min({share, in_pages, room(q) - 1, std::int64_t{q.request.tokens} - q.end.stats.new_tokens - 1});
    if (n <= 0) continue;
    pages -= std::max<std::int64_t>(0, pages_for(q.keys() + 1 + n) - there);
    texts.push_back({.id = q.id,
                     .tokens = q.tokens,
                     .most = n,
                     .rule = q.request.sampling.rule(static_cast<std::uint64_t>(q.end.stats.new_tokens))});
    whose.push_back(p);
  }
  if (texts.empty()) return;
  drafter_->propose(texts);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    grow(*whose[i]->text, 1 + std::ssize(texts[i].proposed));
    whose[i]->proposed = std::move(texts[i].proposed);
  }
}

/// What the rules of a text depend on for its next new token but `later`.
SamplingState Engine::sampling_state(const Sequence& q, std::int64_t later) const {
  return {.index = static_cast<std::uint64_t>(q.end.stats.new_tokens + later),
          .counts = &q.counts,
          .eos = model_.config().eos,
          .constraint = q.request.constraint.get()};
}

/// Of each row that is read: after the known tokens, and after each proposed one; rows within a prompt have none. A text
/// whose constraint fails ends.
void Engine::set_rules_of(const Part& part, std::vector<RowRules>& all) {
  auto& q = *part.text;
  const auto& o = q.request.sampling;
  all.resize(static_cast<std::size_t>(part.read()));
  if (part.tokens < q.pending()) return;
  const auto rows = std::span(all).last(1 + part.proposed.size());
  std::optional<TokenCounts> counts;  // with proposed tokens
  for (std::size_t i = 0; i < rows.size(); ++i) {
    auto state = sampling_state(q, static_cast<std::int64_t>(i));
    if (i > 0 && o.has_penalties()) {
      if (!counts) counts = q.counts;
      counts->add_output(part.proposed[i - 1]);
      state.counts = &*counts;
    }
    try {
      set_rules(rows[i], o, state, options_.vocab);
    } catch (const Error& e) {
      all.clear();
      return end(q, End::Reason::failed, e.what());
    }
  }
}

/// The tokens after those of a prompt whose log-probabilities it asks for.
void Engine::set_wanted_of(const Part& part, std::vector<std::int32_t>& ids) const {
  const auto& q = *part.text;
  ids.clear();
  if (!q.wants_prompt_logprobs()) return;
  for (auto next = q.done + 1; next <= q.done + part.tokens; ++next)
    ids.push_back(next < q.end.stats.prompt_tokens ? q.tokens[static_cast<std::size_t>(next)] : -1);
}

/// Runs a pass over the next tokens of these texts, or queues it on a GPU.
void Engine::start(const std::vector<Part>& parts, bool chosen_on_gpu) {
  std::vector<PackedPasses::Part> list;
  ids_of_pass_.clear();
  rules_of_pass_.resize(std::max(rules_of_pass_.size(), parts.size()));
  wanted_of_pass_.resize(rules_of_pass_.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto& p = parts[i];
    const auto& q = *p.text;
    auto& rules = rules_of_pass_[i];
    rules.clear();
    auto& wanted = wanted_of_pass_[i];
    wanted.clear();
    if (chosen_on_gpu) set_rules_of(p, rules), set_wanted_of(p, wanted);
    const auto& o = q.request.sampling;
    // The row after the known tokens has the index of the next new one.
    const auto index = q.end.stats.new_tokens + 1 + std::ssize(p.proposed) - p.read();
    const auto begin = q.tokens.begin() + static_cast<std::ptrdiff_t>(q.done);
    ids_of_pass_.insert(ids_of_pass_.end(), begin, begin + static_cast<std::ptrdiff_t>(p.tokens));
    ids_of_pass_.insert(ids_of_pass_.end(), p.proposed.begin(), p.proposed.end());
    list.push_back(
        {.text = q.id,
         .pages = {q.pages, q.window_pages},
         .before = q.keys(),
         .left = q.done - q.keys(),
         .adapter = q.request.adapter,
         .tokens = p.tokens + std::ssize(p.proposed),
         .read = p.read(),
         .rule = o.rule(static_cast<std::uint64_t>(index)),
         .changes = rules,
         .logprobs = chosen_on_gpu ? std::max(o.logprobs, wanted.empty() ? -1 : q.request.prompt_logprobs) : -1,
         .wanted = wanted});
  }
  passes_.start(list, ids_of_pass_);
}

void Engine::pass(const std::vector<Part>& parts) {
  const auto begin = Clock::now();
  const bool reads = std::ranges::any_of(parts, [](const Part& p) { return p.read() > 0; });
  const bool all_chosen = reads && std::ranges::all_of(parts, [&](const Part& p) { return chosen_on_gpu(*p.text); });
  start(parts, all_chosen);
  std::span<const std::int32_t> found;
  std::span<float> logits;
  if (all_chosen) found = passes_.chosen();
  else if (reads) logits = passes_.logits();
  if (reads && !passes_.was_first()) cost_.add(std::ssize(ids_of_pass_), seconds_since(begin));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto& part = parts[i];
    auto& q = *part.text;
    const auto first = passes_.first_rows()[i], read = static_cast<std::size_t>(part.read());
    const bool last = part.tokens == q.pending();
    if (!q.ended && q.wants_prompt_logprobs()) score_prompt(q, part.tokens, first, found, logits);
    q.done += part.tokens;
    if (last && !q.ended && q.request.tokens == 0) end(q, End::Reason::length);
    if (last && !q.ended) take_rows(part, first + read - 1 - part.proposed.size(), found, logits);
    publish(q);
    leave_pages(q);
  }
}

/// Passes that a GPU can queue before the host reads their tokens.
std::int64_t Engine::steps_ahead(const std::vector<Part>& parts) const {
  std::int64_t steps = drafter_ ? kAheadOfProposals : kAhead, pages = 0;
  for (const auto& [q, n, proposed] : parts) {
    if (q->pending() > 1 || !proposed.empty() || !chosen_on_gpu(*q) || q->rules_move()) return 1;
    steps = std::min({steps, room(*q), std::int64_t{q->request.tokens} - q->end.stats.new_tokens});
  }
  for (const auto& [q, n, proposed] : parts) pages += pages_for(q->keys() + steps) - std::ssize(q->pages);
  return pages <= table_.available_pages() ? steps : 1;
}

/// Up to `steps` tokens of each text on a GPU, whose passes read their tokens and count positions on the
/// device: each is queued before the host reads the tokens of the previous one. Ends when a text does.
void Engine::pass_ahead(const std::vector<Part>& parts, std::int64_t steps) {
  for (const auto& p : parts) grow(*p.text, steps);
  const auto begin = Clock::now();
  start(parts, true);
  const bool first = passes_.was_first();
  std::int64_t queued = 0;
  const auto deliver = [&] {
    for (const auto& p : parts) ++p.text->done;
    passes_.deliver(static_cast<int>(queued++ % 2));
  };
  deliver();
  bool more = true;
  for (std::int64_t i = 0; i < queued; ++i) {
    more = more && !(interrupted_ && interrupted_());
    if (more && queued < steps) passes_.repeat(), deliver();
    const auto ids = passes_.delivered(static_cast<int>(i % 2));
    for (std::size_t r = 0; r < parts.size(); ++r) {
      auto& q = *parts[r].text;
      if (!q.ended) take_chosen(q, chosen_token(q, r, ids[r]));  // otherwise it is a token after the last one
      more = more && !q.ended;
    }
  }
  passes_.end_ahead();
  if (!first) cost_.add(std::ssize(parts), seconds_since(begin) / static_cast<double>(queued));
  for (const auto& p : parts) publish(*p.text), leave_pages(*p.text);
}

// -- tokens

/// Of token `id` in a row of logits, which are on the host or, where it has `found` ids in them, on a GPU.
Token Engine::logprobs_of(std::size_t row, std::int32_t id, int most, std::span<const std::int32_t> found,
                          std::span<const float> logits) {
  if (found.empty()) return sampler_.logprobs(logits.subspan(row * passes_.width(), passes_.width()), id, most);
  auto token = token_of(passes_.logprobs_of(row), most);
  if (std::isnan(token.logprob)) throw Error(not_finite(found[row]));
  return token;
}

void Engine::score_prompt(Sequence& q, std::int64_t tokens, std::size_t first, std::span<const std::int32_t> found,
                          std::span<const float> logits) {
  auto& scored = q.end.prompt_logprobs;
  try {
    for (std::int64_t i = 0; i < tokens && q.wants_prompt_logprobs(); ++i)
      if (q.done + i == std::ssize(scored))
        scored.push_back(logprobs_of(first + static_cast<std::size_t>(i), q.tokens[scored.size() + 1],
                                     q.request.prompt_logprobs, found, logits));
  } catch (const Error& e) {
    end(q, End::Reason::failed, e.what());
  }
}

void Engine::take_row(Sequence& q, std::size_t row, std::span<const std::int32_t> found, std::span<float> logits) {
  if (found.empty()) return choose(q, logits.subspan(row * passes_.width(), passes_.width()));
  take_chosen(q, chosen_token(q, row, found[row]));
}

/// The token that a GPU has chosen in a row, with its log-probability where the text asks for it.
Token Engine::chosen_token(const Sequence& q, std::size_t row, std::int32_t id) const {
  const int most = q.request.sampling.logprobs;
  return most < 0 ? Token{.id = id} : token_of(passes_.logprobs_of(row), most);
}

/// The next token, and those after it as long as they are the proposed ones.
void Engine::take_rows(const Part& part, std::size_t row, std::span<const std::int32_t> found,
                       std::span<float> logits) {
  auto& q = *part.text;
  std::size_t accepted = 0;
  take_row(q, row, found, logits);
  while (!q.ended && accepted < part.proposed.size() && q.tokens.back() == part.proposed[accepted]) {
    ++accepted, ++q.done;
    take_row(q, row + accepted, found, logits);
  }
  if (part.proposed.empty()) return;
  auto& s = q.end.stats;
  s.proposed_tokens += static_cast<int>(part.proposed.size()), done_.proposed_tokens += std::ssize(part.proposed);
  s.accepted_tokens += static_cast<int>(accepted), done_.accepted_tokens += static_cast<std::int64_t>(accepted);
  drafter_->learn(q.id, static_cast<std::int64_t>(accepted));
  while (std::ssize(q.pages) > pages_for(q.keys())) drop_page(q);
}

/// Whether a GPU chooses its tokens, so that logits stay there.
bool Engine::chosen_on_gpu(const Sequence& q) const {
  return passes_.stream().device().is_cuda() && q.request.sampling.fits_device() &&
         q.request.prompt_logprobs <= Logprobs::kMost;
}

/// The next token of a text, from the logits after its last one.
void Engine::choose(Sequence& q, std::span<float> logits) {
  const auto& o = q.request.sampling;
  Token token;
  try {
    const std::vector<float> unchanged(logits.begin(), o.logprobs >= 0 ? logits.end() : logits.begin());
    token.id = sampler_.sample(logits.first(static_cast<std::size_t>(options_.vocab)), o, sampling_state(q, 0));
    if (o.logprobs >= 0) token = sampler_.logprobs(unchanged, token.id, o.logprobs);
    if (q.request.constraint) q.request.constraint->accept(token.id);
  } catch (const Error& e) {
    return end(q, End::Reason::failed, e.what());
  }
  take(q, token);
}

void Engine::take_chosen(Sequence& q, const Token& token) {
  if (token.id >= 0) {
    try {
      if (q.request.constraint) q.request.constraint->accept(token.id);
    } catch (const Error& e) {
      return end(q, End::Reason::failed, e.what());
    }
    return take(q, token);
  }
  if (RowRules rules; token.id == kNoToken) {
    set_rules(rules, q.request.sampling, sampling_state(q, 0), options_.vocab);
    if (rules.any()) return end(q, End::Reason::failed, fmt::format("[generate] {}", kNoTokenLeft));
  }
  end(q, End::Reason::failed, not_finite(token.id));
}

void Engine::take(Sequence& q, const Token& token) {
  const auto& o = q.request.sampling;
  auto& s = q.end.stats;
  q.tokens.push_back(token.id);
  q.hashes.extend(q.tokens);
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
