#include "hpcdl/infer/page_table.h"

#include <algorithm>
#include <numeric>

#include "hpcdl/core/error.h"
#include "hpcdl/ops/kv_write/pages.h"

namespace hpcdl::infer {
namespace {

/// FNV-1a over words. A collision costs a comparison of tokens, no more.
std::uint64_t hash_of(PageTable::Entry parent, std::span<const std::int32_t> tokens) {
  std::uint64_t h = 0xcbf29ce484222325u ^ parent;
  for (const auto id : tokens) h = (h ^ static_cast<std::uint32_t>(id)) * 0x100000001b3u;
  return h ^ h >> 32;
}

void erase_value(auto& map, std::uint64_t key, std::int32_t page) {
  const auto [begin, end] = map.equal_range(key);
  map.erase(std::find_if(begin, end, [&](const auto& entry) { return entry.second == page; }));
}

constexpr auto kFull = static_cast<std::size_t>(kPageTokens);

}  // namespace

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

std::int32_t PageTable::full_page(Entry parent, std::span<const std::int32_t> tokens, const std::string& salt) const {
  const auto [begin, end] = by_hash_.equal_range(hash_of(parent, tokens));
  const auto found = std::find_if(begin, end, [&](const auto& entry) {
    const auto& p = at(entry.second);
    return p.parent == parent && std::ranges::equal(p.tokens, tokens) && (parent != 0 || p.salt == salt);
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

PageTable::Entry PageTable::publish(std::int32_t page, Entry parent, std::span<const std::int32_t> tokens,
                                    const std::string& salt) {
  const bool full = tokens.size() == kFull;
  if (full)
    if (const auto same = full_page(parent, tokens, salt); same >= 0) return at(same).entry;
  if (!full)
    if (const auto same = after(parent, tokens, salt); same.tokens == std::ssize(tokens)) return at(same.page).entry;
  auto& p = at(page);
  p.entry = ++last_, p.parent = parent;
  p.tokens.assign(tokens.begin(), tokens.end());
  p.salt = parent == 0 ? salt : std::string();
  by_parent_.emplace(parent, page);
  if (full) by_hash_.emplace(hash_of(parent, tokens), page);
  return p.entry;
}

void PageTable::forget(std::int32_t page) {
  auto& p = at(page);
  erase_value(by_parent_, p.parent, page);
  if (p.tokens.size() == kFull) erase_value(by_hash_, hash_of(p.parent, p.tokens), page);
  p.entry = 0;
}

PageTable::Found PageTable::find(std::span<const std::int32_t> tokens, const std::string& salt) const {
  Found found;
  while (tokens.size() >= kFull) {
    const auto page = full_page(found.last, tokens.first(kFull), salt);
    if (page < 0) break;
    found.pages.push_back(page);
    found.last = at(page).entry;
    tokens = tokens.subspan(kFull);
  }
  const auto rest = after(found.last, tokens, salt);
  found.partial = rest.page, found.tokens = rest.tokens;
  if (rest.page >= 0) found.partial_entry = at(rest.page).entry;
  return found;
}

}  // namespace hpcdl::infer
