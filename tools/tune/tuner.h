#pragma once
// Chooses among candidates by measurement: each is checked against a reference before it is timed.

#include <functional>
#include <string>
#include <vector>

#include "hpcdl/dtype.h"
#include "hpcdl/machine/speed_of_light.h"
#include "hpcdl/tune/cache.h"

namespace hpcdl::lab::tune {

struct Candidate {
  int id;
  std::string name;
};

/// What is chosen for: an op at one shape.
struct Subject {
  WayKey key = {};
  std::string dtype = {}, shape = {};  // for people: "4096x4096x4096 +bias gelu"
  Cost cost = {};
};

/// One choice, with operands to run it.
class Tunable {
 public:
  virtual ~Tunable() = default;
  Subject what;
  virtual std::vector<Candidate> candidates() = 0;
  /// The id of the built-in choice.
  virtual int built_in() = 0;
  /// Runs a candidate on poisoned outputs and compares with the reference: returns what is wrong, or nothing.
  virtual std::string verify(int id) = 0;
  /// Seconds of one run whose operands come from memory.
  virtual double seconds(int id) = 0;
};

struct Timed {
  Candidate candidate;
  std::string problem = {};  // error of the check; a candidate with an error is not timed and never chosen
  double seconds = 0;        // median; 0: not timed
  int runs = 0;
};

struct Outcome : Subject {
  std::vector<Timed> table = {};  // the fastest first, then those that were not timed
  int chosen = -1, built_in = -1;
  bool complete = false;  // false: the budget ended before every candidate was measured; nothing is remembered
  const Timed* find(int id) const;
};

/// What is remembered of it.
Entry entry_of(const Outcome& o);

/// The time that tuning may take, by a clock of seconds.
struct Budget {
  std::function<double()> now;
  double end = 0;
  bool over() const { return now() >= end; }
};
/// Starts the budget now.
Budget budget_of(double seconds);

/// After one run of each, candidates within a quarter of the best run in turns until each has `rounds`; the
/// lowest median is chosen, or the built-in one if it is within 2 %. A candidate that throws is wrong.
Outcome tune(Tunable& what, const Budget& budget, int rounds = 9);

}  // namespace hpcdl::lab::tune
