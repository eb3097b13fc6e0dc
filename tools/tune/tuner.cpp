#include "tools/tune/tuner.h"

#include <algorithm>
#include <exception>

#include "hpcdl/core/clock.h"
#include "tools/compare/protocol.h"

namespace hpcdl::lab::tune {
namespace {

constexpr double kInTheRunning = 1.25, kWorthAChange = 0.98;

std::string problem_of(Tunable& what, int id) try { return what.verify(id); } catch (const std::exception& e) {
  return e.what();
}

/// Seconds of one run; infinite if it throws.
struct Sampled {
  Timed* timed;
  std::vector<double> seconds;
};

bool sample(Tunable& what, Sampled& s) try {
  s.seconds.push_back(what.seconds(s.timed->candidate.id));
  return true;
} catch (const std::exception& e) {
  s.timed->problem = e.what();
  return false;
}

double best_of(const std::vector<Sampled>& all) {
  double best = 1e300;
  for (const auto& s : all) best = std::min(best, *std::min_element(s.seconds.begin(), s.seconds.end()));
  return best;
}

/// The built-in candidate first, so that it has been measured if time ends early.
void put_first(std::vector<Candidate>& list, int id) {
  std::stable_partition(list.begin(), list.end(), [&](const Candidate& c) { return c.id == id; });
}

}  // namespace

const Timed* Outcome::find(int id) const {
  const auto found = std::find_if(table.begin(), table.end(), [&](const Timed& t) { return t.candidate.id == id; });
  return found == table.end() ? nullptr : &*found;
}

Entry entry_of(const Outcome& o) {
  const Timed *best = o.find(o.chosen), *before = o.find(o.built_in);
  return {.key = o.key,
          .dtype = o.dtype,
          .shape = o.shape,
          .candidate = best ? best->candidate.name : "",
          .seconds = best ? best->seconds : 0,
          .built_in_seconds = before ? before->seconds : 0};
}

Budget budget_of(double seconds) {
  const auto start = Clock::now();
  return {.now = [start] { return seconds_since(start); }, .end = seconds};
}

Outcome tune(Tunable& what, const Budget& budget, int rounds) {
  Outcome out{what.what};
  out.built_in = out.chosen = what.built_in();
  auto list = what.candidates();
  put_first(list, out.built_in);
  for (auto& c : list) out.table.push_back({.candidate = std::move(c)});
  std::vector<Sampled> all;
  out.complete = true;
  for (auto& t : out.table) {
    if (budget.over()) {
      out.complete = false;
      break;
    }
    t.problem = problem_of(what, t.candidate.id);
    Sampled s{&t, {}};
    if (t.problem.empty() && sample(what, s) && sample(what, s)) {  // the first run loads the kernel
      s.seconds.erase(s.seconds.begin());
      all.push_back(std::move(s));
    }
  }
  if (!all.empty()) {
    const double limit = best_of(all) * kInTheRunning;
    const auto more = [&](int done) { return done + 1 < rounds && !budget.over(); };
    compare::take_turns(all.size(), more, [&](int, std::size_t i) {
      if (all[i].timed->problem.empty() && all[i].seconds.front() <= limit) sample(what, all[i]);
    });
  }
  for (auto& s : all)
    if (s.timed->problem.empty())
      s.timed->runs = static_cast<int>(s.seconds.size()), s.timed->seconds = compare::median(std::move(s.seconds));
  std::stable_sort(out.table.begin(), out.table.end(), [](const Timed& a, const Timed& b) {
    return (a.seconds > 0 ? a.seconds : 1e300) < (b.seconds > 0 ? b.seconds : 1e300);
  });
  if (!out.complete || out.table.empty() || out.table.front().seconds <= 0) return out;
  const Timed* before = out.find(out.built_in);
  const bool change = !before || before->seconds <= 0 || out.table.front().seconds < kWorthAChange * before->seconds;
  if (change) out.chosen = out.table.front().candidate.id;
  return out;
}

}  // namespace hpcdl::lab::tune
