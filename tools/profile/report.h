#pragma once
// Where the time of a training step went, in numbers, and how they are told.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/profile/totals.h"

namespace hpcdl::lab {

/// The observations, before they are summed.
struct Profile {
  std::deque<ProgramFacts> programs;
  std::vector<StepTrace> steps;  // recorded and plain ones, in order
  int threads = 1;
  int rank = 0, world = 1;
  std::string how;  // how records were timed, if that matters: on a GPU
};

/// The cost of observing: recorded steps compared with the plain neighbours they are paired with.
struct Overhead {
  int pairs = 0;
  double median = 0, low = 0, high = 0;  // recorded / plain - 1; quartiles
};

/// Time of a recorded step in which neither a record ran nor a batch was waited for.
struct Gap {
  std::string before;  // what came after it
  double seconds = 0;  // per step
  double longest = 0;
};

struct MemoryPeak {
  std::int64_t arena = 0;         // of the plan of the largest program
  std::int64_t external = 0;      // parameters, gradients, optimizer state
  std::int64_t live = 0;          // at the worst record
  int program = -1, record = -1;  // the worst record
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
  double exchange = 0;  // per step: reductions of gradients during or between the records; 0: one rank, or unknown
  double exchange_waited = 0;  // part of it during which no other record ran
  double kernels = 0;          // per step, including copies and fills on the GPU; 0: unknown
  std::string how;
  double busy = -1;                 // share of the threads' time within records that was work; < 0: one thread
  std::vector<double> thread_busy;  // seconds per step
  double interruptions = 0;         // per step: times that the system took the CPU away from a thread
  Overhead overhead;
  std::vector<Row> rows;             // equal records of all layers combined, longest first
  std::vector<Row> records_by_time;  // one by one, longest first
  std::vector<Gap> gaps;             // longest first
  MemoryPeak memory;
  Roofs roofs;

  double gap_seconds() const;
  double of_roof() const { return step_seconds > 0 ? light / step_seconds : 0; }
};

Report report(const Profile& profile, const Roofs& roofs);

/// Compares neighbours of which one was recorded and one was not.
Overhead overhead(const std::vector<StepTrace>& steps);
std::vector<Gap> gaps(const Profile& profile);
/// Seconds per recorded step between the beginning and the end of programs in which none of their work ran.
double launch_gaps(const Profile& profile);
/// Seconds per recorded step in which gradients were exchanged, and the part in which the step waited only for that.
std::pair<double, double> exchange(const Profile& profile);
MemoryPeak memory_peak(const Profile& profile);

nlohmann::ordered_json report_json(const Report& report);

struct TextOptions {
  std::size_t rows = 20;   // 0: all
  bool by_record = false;  // every record separately instead of equal records of all layers combined
  bool advice = false;     // what to try
};
/// Where a step's time goes, the ranked records, gaps, memory, and the cost of recording.
std::string report_text(const Report& report, const TextOptions& options = {});
/// A self-contained page: ranked bars, one step as a timeline, planned memory over the same time, the table.
std::string report_html(const Report& report, const Profile& profile, const std::string& title);

/// The recorded step with the median time as SVG: stages, layers and records, and the memory below them.
std::string timeline_svg(const Profile& profile, const Roofs& roofs);

}  // namespace hpcdl::lab
