#pragma once
// A schedule with its costs, as people and programs read it.

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "hpcdl/pipe/costs.h"
#include "hpcdl/pipe/generate.h"
#include "hpcdl/pipe/partition.h"
#include "hpcdl/pipe/simulate.h"

namespace hpcdl::lab::pipe {

namespace engine = hpcdl::pipe;

/// A division of layers into stages, and what comes of it.
struct Division {
  engine::Partition partition;
  std::vector<engine::PartCost> stages = {};
  engine::Simulation simulation = {};
};

struct Report {
  std::string name;                        // of the schedule, or of the file with the order
  engine::Schedule schedule;               // lowered, unless it is a deadlock
  std::vector<std::string> deadlock = {};  // engine::deadlock(); empty: none
  std::vector<std::string> notes = {};     // what a reader of the numbers has to know

  std::optional<engine::Costs> costs =
      {};                             // of layers; none: each rank computes forward, and each half of backward, in
                                      // one unit of time
  Division best = {};                 // without costs of layers: no partition
  std::optional<Division> even = {};  // the same layers, dealt without costs
};

/// With the order as it is given, or lowered. `costs`: of layers; null: units. `memory`: bytes of a rank; 0: no limit.
/// `cut`: the layers of the stages; empty: the best for these costs. Throws UsageError if the orders have faults or the
/// layers do not fit.
Report examine(std::string name, const engine::Schedule& orders, const engine::Costs* costs, std::int64_t memory = 0,
               const engine::Partition& cut = {});

/// Everything, with the orders in the form of order files.
nlohmann::ordered_json to_json(const Report& report);
/// The makespan, the bubble, and a table of the ranks; with costs also one of the stages.
std::string to_text(const Report& report);
/// What every rank does at which time, in lines of at most `columns`. `colour`: with escape codes.
std::string timeline_text(const Report& report, std::size_t columns, bool colour);
std::string to_svg(const Report& report);

/// "1f1b: 4 ranks, 8 micro-batches, 2 stages on each rank".
std::string headline(const Report& report);
/// "12.3 ms", or "33 units" without costs.
std::string time_text(const Report& report, double time);
/// "F3" or, where a rank has several stages, "F3b": the letter tells which.
std::string cell_label(const engine::Schedule& schedule, std::size_t rank, const engine::Action& action);

}  // namespace hpcdl::lab::pipe
