#include "hpcdl/parallel/held.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "hpcdl/parallel/uses.h"

namespace hpcdl::parallel {
namespace {

/// Consecutive uses of one owner.
struct Visit {
  std::string_view owner;
  std::size_t first, last;  // records
};

std::vector<Visit> visits(const Program& p, std::span<const OwnedState> states) {
  std::vector<std::string> names;
  for (const auto& s : states) names.push_back(s.name);
  std::vector<std::pair<std::size_t, std::string_view>> uses;
  for_each_use(p, names, [&](const Use& u) { uses.emplace_back(u.record, states[u.tensor].owner); });
  std::sort(uses.begin(), uses.end());
  std::vector<Visit> list;
  for (const auto& [record, owner] : uses) {
    if (list.empty() || list.back().owner != owner) list.push_back({owner, record, record});
    list.back().last = record;
  }
  return list;
}

/// Whether each visit takes long enough to hide what comes: not where the owner is much smaller than most.
std::vector<char> hiding(const std::vector<Visit>& list, std::span<const OwnedState> states) {
  std::map<std::string_view, std::int64_t> bytes;
  for (const auto& s : states) bytes[s.owner] += s.bytes;
  std::vector<std::int64_t> sizes;
  for (const auto& visit : list) sizes.push_back(bytes.at(visit.owner));
  auto sorted = sizes;
  std::sort(sorted.begin(), sorted.end());
  std::vector<char> hides;
  for (const auto n : sizes) hides.push_back(n >= sorted[sorted.size() / 2] / 8);
  return hides;
}

}  // namespace

std::vector<Held> held_states(const Program& pass, std::span<const OwnedState> states, int ahead) {
  const auto list = visits(pass, states);
  const auto hides = hiding(list, states);
  struct Last {
    std::size_t visit, held;
  };
  std::map<std::string_view, Last> last;  // by owner
  std::vector<Held> held;
  for (std::size_t v = 0; v < list.size(); ++v) {
    const auto& [owner, first, end] = list[v];
    std::size_t begin = v;  // the visit with which it begins to come
    for (int left = ahead; left > 0 && begin > 0;) left -= hides[--begin];
    const auto it = last.find(owner);
    if (it != last.end() && begin <= it->second.visit + 1) {
      held[it->second.held].last = end;
      it->second.visit = v;
      continue;
    }
    held.push_back({std::string(owner), list[begin].first, first, end});
    last[owner] = {v, held.size() - 1};
  }
  return held;
}

}  // namespace hpcdl::parallel
