#include "hpcdl/parallel/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

#include "hpcdl/comm/ledger.h"
#include "hpcdl/io/group_ranks.h"
#include "hpcdl/pool.h"

namespace hpcdl::parallel {
namespace {

// A character that occurs in no key, and in no value that TOML writes.
constexpr char kBetween = '\x1f', kBehind = '\x1e';

constexpr std::size_t kMostValues = 3, kMostKeys = 3, kMostRuns = 6;

std::string pack_facts(std::span<const Fact> facts) {
  std::string text;
  for (const auto& f : facts) text += f.name + kBetween + f.value + kBehind;
  return text;
}

std::vector<Fact> unpack_facts(std::string_view text) {
  std::vector<Fact> facts;
  while (!text.empty()) {
    const auto end = std::min(text.find(kBehind), text.size()), middle = std::min(text.find(kBetween), end);
    facts.push_back({std::string(text.substr(0, middle)),
                     std::string(text.substr(middle, end - middle).substr(middle < end ? 1 : 0))});
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return facts;
}

/// FNV-1a, 64 bits.
std::uint64_t digest_of(std::string_view text) {
  std::uint64_t h = 0xCBF29CE484222325u;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return h;
}

bool same_everywhere(const comm::Group& group, std::uint64_t mine) {
  Pool pool(1);
  const comm::Label label("a digest of the settings of all ranks");
  std::vector<std::uint64_t> all(static_cast<std::size_t>(group.size()));
  group.blocking().all_gather(Stream(pool), Tensor(all.data(), {{group.size()}, DType::i64}),
                              View(&mine, {{1}, DType::i64}));
  return std::all_of(all.begin(), all.end(), [&](std::uint64_t d) { return d == mine; });
}

/// The value of a fact, and the ranks that have it.
using Values = std::vector<std::pair<std::string, std::vector<int>>>;

Values values_of(const std::vector<std::vector<Fact>>& by_rank, std::string_view name) {
  Values values;
  for (std::size_t r = 0; r < by_rank.size(); ++r) {
    const auto fact = std::find_if(by_rank[r].begin(), by_rank[r].end(), [&](const Fact& f) { return f.name == name; });
    const std::string value = fact == by_rank[r].end() ? "not known" : fact->value.empty() ? "empty" : fact->value;
    const auto same = std::find_if(values.begin(), values.end(), [&](const auto& v) { return v.first == value; });
    if (same == values.end()) values.push_back({value, {static_cast<int>(r)}});
    else same->second.push_back(static_cast<int>(r));
  }
  return values;
}

std::vector<std::string> names_of(const std::vector<std::vector<Fact>>& by_rank) {
  std::vector<std::string> names;
  for (const auto& facts : by_rank) {
    if (&facts != &by_rank.front() && facts.size() == names.size()) {
      const auto same = [](const std::string& n, const Fact& f) { return n == f.name; };
      if (std::equal(names.begin(), names.end(), facts.begin(), facts.end(), same)) continue;
    }
    for (const auto& f : facts)
      if (std::find(names.begin(), names.end(), f.name) == names.end()) names.push_back(f.name);
  }
  return names;
}

/// "a", "a and b", "a, b and c".
std::string enumerate(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i)
    text += (i == 0 ? "" : i + 1 == words.size() ? " and " : ", ") + words[i];
  return text;
}

std::string say_values(const std::string& name, const Values& values) {
  std::vector<std::string> parts;
  for (const auto& [value, ranks] : values) {
    if (parts.size() == kMostValues && values.size() > kMostValues + 1) {
      parts.push_back(fmt::format("{} other values on other ranks", values.size() - kMostValues));
      break;
    }
    parts.push_back(fmt::format("{} on {}", value, name_ranks(ranks)));
  }
  return fmt::format("{} is {}", name, enumerate(parts));
}

std::string say_others(std::vector<std::string> keys) {
  if (keys.empty()) return "";
  const bool many = keys.size() > 1;
  if (keys.size() > kMostKeys + 1) {
    const auto more = keys.size() - kMostKeys;
    keys.resize(kMostKeys);
    keys.push_back(fmt::format("{} more", more));
  }
  return fmt::format("; {} {}, too", enumerate(keys), many ? "differ" : "differs");
}

}  // namespace

std::string name_ranks(std::span<const int> ranks) {
  std::vector<std::string> runs;
  for (std::size_t begin = 0, end = 0; begin < ranks.size(); begin = end) {
    for (end = begin + 1; end < ranks.size() && ranks[end] == ranks[end - 1] + 1;) ++end;
    if (end - begin > 2) runs.push_back(fmt::format("{} to {}", ranks[begin], ranks[end - 1]));
    else
      for (std::size_t i = begin; i < end; ++i) runs.push_back(std::to_string(ranks[i]));
  }
  if (runs.size() > kMostRuns + 1) {
    runs.resize(kMostRuns);
    runs.push_back("others");
  }
  return fmt::format("rank{} {}", ranks.size() > 1 ? "s" : "", enumerate(runs));
}

std::string difference(const std::vector<std::vector<Fact>>& by_rank) {
  std::string first;
  std::vector<std::string> others;
  for (const auto& name : names_of(by_rank)) {
    const auto values = values_of(by_rank, name);
    if (values.size() < 2) continue;
    if (first.empty()) first = say_values(name, values);
    else others.push_back(name);
  }
  return first + say_others(std::move(others));
}

void expect_agreement(const comm::Group& group, std::span<const Fact> facts) {
  if (group.size() == 1) return;
  const auto mine = pack_facts(facts);
  if (same_everywhere(group, digest_of(mine))) return;
  std::vector<std::vector<Fact>> by_rank;
  for (const auto& theirs : io::GroupRanks(group).gather(mine)) by_rank.push_back(unpack_facts(theirs));
  auto what = difference(by_rank);
  if (what.empty()) what = "the ranks list the values that must be equal in different orders";
  throw Disagreement(fmt::format("[ranks] {}: start all ranks with the same program, config and data", what));
}

}  // namespace hpcdl::parallel
