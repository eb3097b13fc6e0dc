#pragma once
// Where the time of a training step went, in numbers, and how they are told.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "hpcdl/lab/profile/totals.h"

namespace hpcdl::lab {

/// What was seen, before it is counted.
struct Profile {
  std::deque<ProgramFacts> programs;
  std::vector<StepTrace> steps;  // recorded and plain ones, in order
  int threads = 1;
  int rank = 0, world = 1;
  std::string how;  // records were timed, where that matters: on a GPU
};

/// What looking costs: recorded steps against the plain neighbours they are paired with.
struct Overhead {
  int pairs = 0;
  double median = 0, low = 0, high = 0;  // recorded / plain - 1; quartiles
};

/// Time of a recorded step in which no record ran and no batch was waited for.
struct Gap {
  std::string before;  // what ended it
  double seconds = 0;  // per step
  double longest = 0;
};

struct MemoryPeak {
  std::int64_t arena = 0;         // of the plan of the largest program
  std::int64_t external = 0;      // parameters, gradients, optimizer state
  std::int64_t live = 0;          // at the worst record
  int program = -1, record = -1;  // of the worst record
  std::string label;
};

struct Report {
  std::int64_t steps = 0;  // recorded
  int threads = 1, rank = 0, world = 1;
  double step_seconds = 0;       // mean of the recorded steps
  double plain_seconds = 0;      // mean of the plain ones; 0: none
  double light = 0;              // of one step
  double data = 0, records = 0;  // per step: waiting for batches; inside records
  double phases[4] = {};         // per step: records of each Phase
  double between_steps = 0;      // per step: logging and the like, outside of steps
  double launch_gaps = -1;       // seconds per step in which a GPU was idle within a program; < 0: ran on a CPU
  double exchange = 0;  // per step: reductions of gradients beside or between the records; 0: one rank, or not known
  double exchange_waited = 0;  // of it: while no other record ran
  double kernels = 0;          // per step, copies and fills on the GPU among them; 0: not known
  std::string how;
  double busy = -1;                 // share of the threads' time within records that was work; < 0: one thread
  std::vector<double> thread_busy;  // seconds per step
  double interruptions = 0;         // per step: the CPU was taken away from a thread
  Overhead overhead;
  std::vector<Row> rows;             // same records of all layers together, longest first
  std::vector<Row> records_by_time;  // one by one, longest first
  std::vector<Gap> gaps;             // longest first
  MemoryPeak memory;
  Roofs roofs;

  double gap_seconds() const;
  double of_roof() const { return step_seconds > 0 ? light / step_seconds : 0; }
};

Report report(const Profile& profile, const Roofs& roofs);

/// Neighbours of which one was recorded and one was not.
Overhead overhead(const std::vector<StepTrace>& steps);
std::vector<Gap> gaps(const Profile& profile);
/// Seconds per recorded step between the begin and the end of the programs in which nothing of them ran.
double launch_gaps(const Profile& profile);
/// Seconds per recorded step in which gradients were exchanged, and of them in which the step waited for that alone.
std::pair<double, double> exchange(const Profile& profile);
MemoryPeak memory_peak(const Profile& profile);

nlohmann::ordered_json report_json(const Report& report);

struct TextOptions {
  std::size_t rows = 20;   // 0: all
  bool by_record = false;  // every record by itself instead of the same of all layers together
  bool advice = false;     // what to try
};
/// Where a step's time goes, the ranked records, gaps, memory, and what looking cost.
std::string report_text(const Report& report, const TextOptions& options = {});
/// One page that needs nothing else: ranked bars, one step as a timeline, planned memory over the same time, the table.
std::string report_html(const Report& report, const Profile& profile, const std::string& title);

/// The step in the middle of all recorded ones by time as SVG: stages, layers and records, and below them the memory.
std::string timeline_svg(const Profile& profile, const Roofs& roofs);

}  // namespace hpcdl::lab
