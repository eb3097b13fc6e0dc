// The pages of an engine's texts: which they find, hold and give back.

#include <algorithm>
#include <utility>

#include "hpcdl/infer/engine.h"

namespace hpcdl::infer {

/// As much of it as layers with a window still hold, or do not see from there on.
PageTable::Found Engine::within_windows(PageTable::Found f) const {
  if (!windows_) return f;
  const auto window = model_.config().window;
  std::int64_t held = 0;  // pages from here on have keys in all layers
  std::size_t enough = 0;
  for (std::size_t i = 0; i < f.pages.size(); ++i) {
    const auto next = static_cast<std::int64_t>(i) + 1;
    if (windows_->of(f.pages[i]) < 0) held = next;
    if (held <= first_page_seen(next * kPageTokens, window)) enough = i + 1;
  }
  const auto all = std::ssize(f.pages);
  const bool with_partial =
      f.partial >= 0 && windows_->of(f.partial) >= 0 && held <= first_page_seen(all * kPageTokens + f.tokens, window);
  if (with_partial) return f;
  f.pages.resize(enough);
  return {.pages = f.pages, .last = enough > 0 ? table_.entry(f.pages.back()) : 0};
}

/// The keys and values of its first tokens that are there; the last token is always left, for its logits.
PageTable::Found Engine::find(const Sequence& q) const {
  if (!options_.reuse_prefixes || q.wants_prompt_logprobs()) return {};
  auto found = table_.find(q.until(std::ssize(q.tokens) - 1));
  if (!options_.kv_window.any()) return within_windows(std::move(found));
  const auto sinks = options_.kv_window.sink_pages(), full = found.full();
  found.dropped = std::min(options_.kv_window.first_page(full * kPageTokens), full) - std::min(sinks, full);
  const auto after_sinks = found.pages.begin() + std::min(sinks, full);
  found.pages.erase(after_sinks, after_sinks + found.dropped);
  return found;
}

/// The most pages that it needs at a time.
std::int64_t Engine::most_pages(const Sequence& q) const {
  const auto all = pages_for(q.end.stats.prompt_tokens + q.request.tokens);
  return options_.kv_window.any() ? std::min(all, options_.kv_window.pages()) : all;
}

/// Tokens that one pass may have of it.
std::int64_t Engine::room(const Sequence& q) const {
  const auto all = options_.context - q.done;
  return options_.kv_window.any() ? std::min(all, options_.kv_window.tokens_alike(q.done)) : all;
}

/// The full pages that were found for it.
void Engine::hold(Sequence& q, const PageTable::Found& found) {
  q.published = found.full(), q.parent = found.last, q.dropped = found.dropped;
  q.done = q.published * kPageTokens;
  q.left = windows_ ? first_page_seen(q.done + found.tokens, model_.config().window) : 0;
  for (const auto page : found.pages) table_.hold(page), add_page(q, page);
}

/// After hold().
void Engine::begin(Sequence& q, const PageTable::Found& found) {
  const bool with_partial =
      table_.has_partial(found) && (table_.available_pages() > 1 || !table_.is_idle(found.partial));
  if (with_partial) {
    q.done += found.tokens;
    table_.hold(found.partial);
    PagePair from{.all = found.partial};
    if (windows_) from.window = windows_->hold(found.partial);
    add_page(q, table_.take());
    passes_.copy_page({.all = q.pages.back(), .window = windows_ ? q.window_pages.back() : 0}, from);
    if (windows_) windows_->release(found.partial, true);
    table_.release(found.partial);
  } else if (windows_ && q.left > first_page_seen(q.done, model_.config().window)) {
    give_back(q);  // without the partial page, windows begin before the pages that were held
  }
  auto& stats = q.end.stats;
  if (std::exchange(q.begun, true)) return;  // it was preempted
  stats.cached_tokens = static_cast<int>(std::min<std::int64_t>(q.done, stats.prompt_tokens));
  done_.prompt_tokens += stats.prompt_tokens, done_.cached_tokens += stats.cached_tokens;
}

/// One that the text holds from now on.
void Engine::add_page(Sequence& q, std::int32_t page) {
  if (windows_) q.window_pages.push_back(std::ssize(q.pages) < q.left ? -1 : windows_->hold(page));
  q.pages.push_back(page);
}

/// The last one.
void Engine::drop_page(Sequence& q) {
  const auto page = q.pages.back();
  q.pages.pop_back();
  if (windows_) {
    if (q.window_pages.back() >= 0) windows_->release(page, table_.entry(page) != 0);
    q.window_pages.pop_back();
  }
  table_.release(page);
}

/// Those that its next token does not see: with a KvWindow in all layers, otherwise in layers with a window.
void Engine::leave_pages(Sequence& q) {
  if (const auto& window = options_.kv_window; window.any()) {
    const auto sinks = window.sink_pages(), last = std::min(window.first_page(q.done), q.dropped + std::ssize(q.pages));
    for (; sinks + q.dropped < last; ++q.dropped) {
      table_.release(q.page(sinks + q.dropped));
      q.pages.erase(q.pages.begin() + sinks);
      ++done_.left_pages;
      passes_.interrupt();
    }
  }
  if (!windows_) return;
  const auto first = std::min(first_page_seen(q.done, model_.config().window), std::ssize(q.pages));
  for (; q.left < first; ++q.left) {
    const auto page = q.pages[static_cast<std::size_t>(q.left)];
    windows_->release(page, table_.entry(page) != 0);
    q.window_pages[static_cast<std::size_t>(q.left)] = -1;
    ++done_.left_pages;
    passes_.interrupt();
  }
}

/// Pages for this many more tokens.
void Engine::grow(Sequence& q, std::int64_t tokens) {
  while (std::ssize(q.pages) < pages_for(q.keys() + tokens)) add_page(q, table_.take()), passes_.interrupt();
}

/// Lets other texts find its pages that are full.
void Engine::publish(Sequence& q) {
  if (!options_.reuse_prefixes) return;
  const auto known = std::min<std::int64_t>(q.done, std::ssize(q.tokens));
  for (; (q.published + 1) * kPageTokens <= known; ++q.published)
    q.parent = table_.publish(q.page(q.published), q.parent, q.until(known), q.published);
}

/// All its pages.
void Engine::give_back(Sequence& q) {
  while (!q.pages.empty()) drop_page(q);
  q.done = q.published = q.left = q.dropped = 0, q.parent = 0;
}

/// Gives its pages back; others find its tokens in them, also those of the last page.
void Engine::release(Sequence& q) {
  if (options_.reuse_prefixes && q.end.reason != End::Reason::failed) {
    publish(q);
    const auto known = std::min<std::int64_t>(q.done, std::ssize(q.tokens));
    if (q.published * kPageTokens < known) table_.publish(q.page(q.published), q.parent, q.until(known), q.published);
  }
  give_back(q);
  passes_.interrupt();
  if (drafter_) drafter_->forget(q.id);
}

}  // namespace hpcdl::infer
