#pragma once
// A pipeline on ranks of this machine: the step that its measured costs promise, and the step that it takes.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "hpcdl/group.h"
#include "hpcdl/pipe/costs.h"
#include "hpcdl/pipe/partition.h"
#include "hpcdl/pool.h"
#include "hpcdl/train/config.h"
#include "tools/pipe/report.h"

namespace hpcdl::lab::pipe {

struct Measured {
  Report simulated;           // of the measured costs
  std::vector<double> steps;  // seconds of the slowest rank, without the update
  double least() const;
  /// The simulated makespan over the least disturbed step.
  double ratio() const;
};

/// Collective; a stage for each rank of `world` and chunk, on a CPU. Other axes of the mesh count as 1. Every round times
/// the layers on all ranks at the same time, then a step; the least times count, because other programs of the machine
/// can only make a round longer. parallel.layers: the cut that is the best for the costs of the first rounds, unless it
/// is set. Resolves `config`.
Measured measure(const comm::Group& world, Pool& pool, train::RunConfig& config, int rounds);

std::string to_text(const Measured& m);
/// The simulation as to_json(Report), and the steps.
nlohmann::ordered_json to_json(const Measured& m);

}  // namespace hpcdl::lab::pipe
