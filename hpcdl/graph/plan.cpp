#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "hpcdl/instance.h"
#include "hpcdl/program/pages.h"

namespace hpcdl {
namespace {

std::vector<Lifetime> lifetimes(const Program& p) {
  std::vector<Lifetime> life(p.slots.size());
  const int end = static_cast<int>(p.records.size()) - 1;
  for (int r = 0; r <= end; ++r) {
    const auto& rec = p.records[static_cast<std::size_t>(r)];
    for (std::uint32_t i = 0; i < rec.operand_count; ++i) {
      const int slot = p.operands[rec.operands + i].slot;
      if (slot < 0) continue;
      auto& l = life[static_cast<std::size_t>(slot)];
      if (l.first < 0) l.first = r;
      l.last = r;
    }
  }
  // Records of the lanes on which ranks exchange take long: what they read last stays until the next of them begins.
  // Else the next slot would take its memory, and the computation would wait for the exchange.
  std::vector<int> next_exchange(p.records.size());
  for (int r = end, next[kLanes] = {end, end, end, end}; r >= 0; --r) {
    const auto lane = static_cast<std::size_t>(p.records[static_cast<std::size_t>(r)].lane);
    next_exchange[static_cast<std::size_t>(r)] = std::exchange(next[lane], r);
  }
  for (auto& l : life) {
    if (l.last < 0) continue;
    const auto last = static_cast<std::size_t>(l.last);
    if (p.records[last].lane == Lane::reduce) l.last = next_exchange[last];
  }
  for (std::size_t s = 0; s < life.size(); ++s) {
    if (p.slots[s].kind == SlotKind::input) life[s] = {0, std::max(end, 0)};
    if (p.slots[s].kind == SlotKind::kept && life[s].first >= 0) life[s].last = end;
  }
  return life;
}

std::int64_t rounded_up(std::int64_t bytes, std::int64_t align) { return (bytes + align - 1) / align * align; }

struct Item {
  int slot;
  Lifetime life;
  std::int64_t size;
};

/// Places slots in order of first use into the tightest hole that fits; returns the arena's size.
std::int64_t place_by_time(std::vector<Item> items, int records, std::vector<std::int64_t>& offset) {
  std::vector<std::vector<int>> ends(static_cast<std::size_t>(records));
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return a.life.first != b.life.first ? a.life.first < b.life.first : a.size > b.size;
  });
  for (std::size_t i = 0; i < items.size(); ++i)
    ends[static_cast<std::size_t>(items[i].life.last)].push_back(static_cast<int>(i));
  std::map<std::int64_t, std::int64_t> holes;  // offset -> size
  std::int64_t top = 0;
  const auto release = [&](std::int64_t at, std::int64_t size) {
    auto next = holes.lower_bound(at);
    if (next != holes.end() && next->first == at + size) size += next->second, next = holes.erase(next);
    if (next != holes.begin()) {
      auto prev = std::prev(next);
      if (prev->first + prev->second == at) {
        prev->second += size;
        return;
      }
    }
    holes.emplace(at, size);
  };
  std::size_t at = 0;
  for (int r = 0; r < records; ++r) {
    for (; at < items.size() && items[at].life.first == r; ++at) {
      const auto& item = items[at];
      auto best = holes.end();
      for (auto h = holes.begin(); h != holes.end(); ++h)
        if (h->second >= item.size && (best == holes.end() || h->second < best->second)) best = h;
      std::int64_t place = top;
      if (best != holes.end()) {
        place = best->first;
        const auto rest = best->second - item.size;
        holes.erase(best);
        if (rest > 0) holes.emplace(place + item.size, rest);
      } else {
        if (!holes.empty() && std::prev(holes.end())->first + std::prev(holes.end())->second == top) {
          place = std::prev(holes.end())->first;  // grow the hole at the top
          holes.erase(std::prev(holes.end()));
        }
        top = place + item.size;
      }
      offset[static_cast<std::size_t>(item.slot)] = place;
    }
    for (int i : ends[static_cast<std::size_t>(r)])
      release(offset[static_cast<std::size_t>(items[static_cast<std::size_t>(i)].slot)],
              items[static_cast<std::size_t>(i)].size);
  }
  return top;
}

/// Places slots by descending size at the lowest address that is free during their whole life ("greedy by size",
/// Pisarchyk & Lee, "Efficient memory management for deep neural net inference", 2020). Quadratic.
std::int64_t place_by_size(std::vector<Item> items, std::vector<std::int64_t>& offset) {
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.size > b.size; });
  std::vector<Item> placed;  // by offset
  std::int64_t top = 0;
  const auto at = [&](const Item& i) { return offset[static_cast<std::size_t>(i.slot)]; };
  for (const auto& item : items) {
    std::int64_t place = 0, best = -1, best_gap = 0;
    for (const auto& other : placed) {
      if (other.life.last < item.life.first || item.life.last < other.life.first) continue;
      const auto gap = at(other) - place;
      if (gap >= item.size && (best < 0 || gap < best_gap)) best = place, best_gap = gap;
      place = std::max(place, at(other) + other.size);
    }
    if (best >= 0) place = best;
    offset[static_cast<std::size_t>(item.slot)] = place;
    placed.insert(std::upper_bound(placed.begin(), placed.end(), item,
                                   [&](const Item& a, const Item& b) { return at(a) < at(b); }),
                  item);
    top = std::max(top, place + item.size);
  }
  return top;
}

}  // namespace

std::int64_t arena_size(const Slot& slot) { return rounded_up(slot.spec.bytes(), Plan::kAlign); }

Plan plan(const Program& program) {
  constexpr std::size_t kQuadraticLimit = 4000;
  Plan out;
  out.offset.assign(program.slots.size(), -1);
  out.lifetime = lifetimes(program);
  const bool pages = has_whole_pages(program);
  const auto align = pages ? kPageBytes : Plan::kAlign;
  const auto records = std::max(static_cast<int>(program.records.size()), 1);  // inputs have memory even without any
  std::vector<Item> items;
  std::vector<std::int64_t> delta(static_cast<std::size_t>(records) + 1);
  for (std::size_t s = 0; s < program.slots.size(); ++s) {
    const auto& slot = program.slots[s];
    if (slot.kind == SlotKind::state || out.lifetime[s].first < 0 || slot.spec.bytes() == 0) continue;
    items.push_back({static_cast<int>(s), out.lifetime[s], rounded_up(slot.spec.bytes(), align)});
    delta[static_cast<std::size_t>(out.lifetime[s].first)] += items.back().size;
    delta[static_cast<std::size_t>(out.lifetime[s].last) + 1] -= items.back().size;
  }
  for (std::int64_t r = 0, live = 0; r < records; ++r) {
    live += delta[static_cast<std::size_t>(r)];
    if (live > out.live_bytes) out.live_bytes = live, out.worst_record = static_cast<int>(r);
  }
  if (program.records.empty()) out.worst_record = -1;
  out.arena_bytes = place_by_time(items, records, out.offset);
  if (out.arena_bytes > out.live_bytes && items.size() <= kQuadraticLimit) {
    auto other = out.offset;
    if (const auto bytes = place_by_size(items, other); bytes < out.arena_bytes) {
      out.arena_bytes = bytes;
      out.offset = std::move(other);
    }
  }
  constexpr std::int64_t kBeginsWithPage = std::int64_t{2} << 20;  // a Buffer of that size does
  if (pages) out.arena_bytes = std::max(out.arena_bytes, kBeginsWithPage);
  return out;
}

}  // namespace hpcdl
