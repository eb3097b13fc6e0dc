// Measured choices: as text, in a file, and the same on all ranks.

#include <algorithm>
#include <fstream>
#include <sstream>

#include "hpcdl/comm/algo/policy.h"
#include "hpcdl/comm/impl.h"
#include "hpcdl/pool.h"

namespace hpcdl::comm::algo {

namespace {

constexpr std::size_t kMostText = 16 << 10;

bool same_situation(const Policy::Row& a, const Policy::Row& b) {
  return a.what == b.what && a.ranks == b.ranks && a.hosts == b.hosts && a.window == b.window;
}

template <class E, class Name> bool find_name(const std::string& word, std::size_t count, Name name, E& found) {
  for (std::size_t i = 0; i < count; ++i)
    if (name(static_cast<E>(i)) == word) return found = static_cast<E>(i), true;
  return false;
}

}  // namespace

Algorithm Policy::choose(const Situation& s) const {
  const Row* best = nullptr;
  for (const Row& r : rows) {
    if (!same_situation(r, {.what = s.what, .ranks = s.ranks, .hosts = s.hosts, .window = s.window})) continue;
    const bool nearer =
        !best || (r.bytes >= s.bytes ? best->bytes < s.bytes || r.bytes < best->bytes : r.bytes > best->bytes);
    if (nearer) best = &r;
  }
  const auto can = possible(s, false);
  return best && std::find(can.begin(), can.end(), best->algorithm) != can.end() ? best->algorithm : default_choice(s);
}

void Policy::replace(const std::vector<Row>& of_one_situation) {
  if (of_one_situation.empty()) return;
  std::erase_if(rows, [&](const Row& r) { return same_situation(r, of_one_situation.front()); });
  rows.insert(rows.end(), of_one_situation.begin(), of_one_situation.end());
}

std::string Policy::text() const {
  std::string out;
  for (const Row& r : rows)
    out += fmt::format("{} {} ranks {} hosts {} {} {}\n", collective_name(r.what), r.ranks, r.hosts,
                       r.window ? "window" : "private", r.bytes, algorithm_name(r.algorithm));
  return out;
}

Policy Policy::parse(const std::string& text) {
  Policy p;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string what, ranks, hosts, memory, algorithm;
    Row r;
    if (!(words >> what >> r.ranks >> ranks >> r.hosts >> hosts >> memory >> r.bytes >> algorithm)) continue;
    const bool known = find_name(what, static_cast<std::size_t>(Collective::split) + 1, collective_name, r.what) &&
                       find_name(algorithm, std::size(kAlgorithmNames), algorithm_name, r.algorithm);
    r.window = memory == "window";
    if (known && ranks == "ranks" && hosts == "hosts" && r.bytes >= 0 && r.algorithm != Algorithm::automatic)
      p.rows.push_back(r);
  }
  return p;
}

Policy Policy::read(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::stringstream text;
  text << in.rdbuf();
  return Policy::parse(text.str());
}

void adopt(const Group& world, const Policy& mine) {
  std::string text = world.rank() == 0 ? mine.text() : "";
  if (text.size() > kMostText) text.resize(text.rfind('\n', kMostText) + 1);
  text.resize(kMostText);
  Pool pool(1);
  world.blocking().broadcast(Stream(pool),
                             Tensor(text.data(), Spec{Shape{static_cast<std::int64_t>(text.size())}, DType::u8}), 0);
  world.impl()->engine->policy = Policy::parse(text.substr(0, text.find('\0')));
}

}  // namespace hpcdl::comm::algo
