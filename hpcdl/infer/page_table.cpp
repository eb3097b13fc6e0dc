#include "hpcdl/infer/page_table.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "hpcdl/core/error.h"
#include "hpcdl/ops/kv_write/pages.h"

namespace hpcdl::infer {
namespace {

/// FNV-1a over words. A collision costs a comparison of tokens, no more.
std::uint64_t hash_after(std::uint64_t before, std::span<const std::int32_t> tokens) {
  std::uint64_t h = 0xcbf29ce484222325u ^ before;
  for (const auto id : tokens) h = (h ^ static_cast<std::uint32_t>(id)) * 0x100000001b3u;
  return h ^ h >> 32;
}

std::span<const std::int32_t> tokens_of_page(std::span<const std::int32_t> tokens, std::int64_t number) {
  const auto rest = tokens.subspan(static_cast<std::size_t>(number * kPageTokens));
  return rest.first(std::min(rest.size(), static_cast<std::size_t>(kPageTokens)));
}

void erase_value(auto& map, std::uint64_t key, std::int32_t page) {
  const auto [begin, end] = map.equal_range(key);
  map.erase(std::find_if(begin, end, [&](const auto& entry) { return entry.second == page; }));
}

constexpr auto kFull = static_cast<std::size_t>(kPageTokens);

}  // namespace

PageHashes::PageHashes(const std::string& salt) : last_(std::hash<std::string>()(salt)) {}

void PageHashes::extend(std::span<const std::int32_t> tokens) {
  while ((of_pages_.size() + 1) * kFull <= tokens.size())
    of_pages_.push_back(last_ = hash_after(last_, tokens_of_page(tokens, std::ssize(of_pages_))));
}

PageTable::PageTable(std::int64_t pages)
    : pages_(static_cast<std::size_t>(pages)), free_(static_cast<std::size_t>(pages)) {
  std::iota(free_.rbegin(), free_.rend(), 0);
}

std::int32_t PageTable::take() {
  require(available_pages() > 0, "engine", "a page of keys and values is needed, but none of {} is free", pages());
  if (free_.empty()) {
    const auto page = idle_.front();
    idle_.pop_front();
    forget(page);
    free_.push_back(page);
  }
  const auto page = free_.back();
  free_.pop_back();
  at(page).holders = 1;
  return page;
}

void PageTable::hold(std::int32_t page) {
  if (at(page).holders++ == 0) idle_.erase(at(page).place);
}

void PageTable::release(std::int32_t page) {
  auto& p = at(page);
  if (--p.holders > 0) return;
  if (p.entry == 0) free_.push_back(page);
  else p.place = idle_.insert(idle_.end(), page);
}

std::int32_t PageTable::full_page(Entry parent, const PagedText& text, std::int64_t number) const {
  const auto [begin, end] = by_hash_.equal_range(text.hashes[number]);
  const auto found = std::find_if(begin, end, [&](const auto& entry) {
    const auto& p = at(entry.second);
    return p.parent == parent && std::ranges::equal(p.tokens, tokens_of_page(text.tokens, number)) &&
           (parent != 0 || p.salt == text.salt);
  });
  return found == end ? -1 : found->second;
}

/// The page after `parent` with the most of these tokens first, of those that are compared: many texts begin differently.
PageTable::Beginning PageTable::after(Entry parent, std::span<const std::int32_t> tokens,
                                      const std::string& salt) const {
  constexpr int kMost = 64;
  Beginning best;
  int compared = 0;
  const auto [begin, end] = by_parent_.equal_range(parent);
  for (auto i = begin; i != end && compared < kMost; ++i, ++compared) {
    const auto& p = at(i->second);
    if (parent == 0 && p.salt != salt) continue;
    const auto common = std::ranges::mismatch(p.tokens, tokens).in1 - p.tokens.begin();
    if (common > best.tokens) best = {i->second, common};
  }
  return best;
}

PageTable::Entry PageTable::publish(std::int32_t page, Entry parent, const PagedText& text, std::int64_t number) {
  const auto tokens = tokens_of_page(text.tokens, number);
  const bool full = tokens.size() == kFull;
  if (full)
    if (const auto same = full_page(parent, text, number); same >= 0) return at(same).entry;
  if (!full)
    if (const auto same = after(parent, tokens, text.salt); same.tokens == std::ssize(tokens))
      return at(same.page).entry;
  auto& p = at(page);
  p.entry = ++last_, p.parent = parent;
  p.tokens.assign(tokens.begin(), tokens.end());
  p.salt = parent == 0 ? text.salt : std::string();
  by_parent_.emplace(parent, page);
  if (full) by_hash_.emplace(p.hash = text.hashes[number], page);
  return p.entry;
}

void PageTable::forget(std::int32_t page) {
  auto& p = at(page);
  erase_value(by_parent_, p.parent, page);
  if (p.tokens.size() == kFull) erase_value(by_hash_, p.hash, page);
  p.entry = 0;
}

PageTable::Found PageTable::find(const PagedText& text) const {
  Found found;
  std::int64_t number = 0;
  for (; (number + 1) * kPageTokens <= std::ssize(text.tokens); ++number) {
    const auto page = full_page(found.last, text, number);
    if (page < 0) break;
    found.pages.push_back(page);
    found.last = at(page).entry;
  }
  const auto rest = after(found.last, text.tokens.subspan(static_cast<std::size_t>(number * kPageTokens)), text.salt);
  found.partial = rest.page, found.tokens = rest.tokens;
  if (rest.page >= 0) found.partial_entry = at(rest.page).entry;
  return found;
}

}  // namespace hpcdl::infer
