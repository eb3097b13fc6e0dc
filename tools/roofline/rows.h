#pragma once
// One line of a roofline: a kernel, its cost, its time at the speed of light, and its measured time.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hpcdl/machine/speed_of_light.h"
#include "hpcdl/train/config.h"
#include "tools/cases.h"
#include "tools/compare/environment.h"

namespace hpcdl::lab::roofline {

/// A measured time may be shorter than its roof by this factor before it counts as a fault: roofs are the best of a few
/// rounds, and vary by about a percent.
inline constexpr double kAbove = 1.02;

struct Row {
  std::string source;            // "seed", "case"; "step": records of a training step
  std::string op, shape, dtype;  // "softmax", "4096x1024", "f32"; for a step, the unit of its arithmetic
  std::string pass;              // "fwd", "fwd+bwd"; for a step: forward, recompute, backward, update
  std::string scope;             // for a step: its place in the model, "layers.*.mlp"
  std::string device = "cpu";
  std::int64_t count = 1;  // equal records of a step; all figures are per record
  Cost cost;
  std::vector<Cost> parts;  // the records that one run consists of
  LightTime light;
  double seconds = 0;  // median; 0: not measured
  double fastest = 0, slowest = 0;
  int runs = 0;

  bool measured() const { return seconds > 0; }
  double intensity() const { return cost.bytes() > 0 ? cost.operations / cost.bytes() : 0; }
  double flops_per_second() const { return cost.operations / seconds; }
  double share() const { return light.seconds / seconds; }
  /// Faster than light: the declared cost or the measurement is wrong. Never a success.
  bool fault() const { return measured() && share() > kAbove; }
  /// "softmax 4096x1024 f32 fwd+bwd".
  std::string label() const;
};

/// The three cases that explain the picture: vector add, a large product, a fused softmax.
std::vector<Case> seed_cases();

/// Only costs and roofs.
Row row_of(const Case& c, const std::string& source, const Roofs& roofs);

struct Timing {
  double seconds = 0.08;  // for the repeats of one case; at least three runs
  int step_runs = 3;
};

/// Where kernels run, and the clock that times them.
struct Place {
  Stream stream;
  std::unique_ptr<compare::Environment> clock;

  Place(Device device, Pool& pool) : stream(device, pool), clock(compare::environment_of(stream)) {}
};

/// row_of(), timed; on a GPU as a captured graph. `arena` is used and can be reused for the next.
Row measure(const Case& c, const std::string& source, const Place& place, const Roofs& roofs, const Timing& timing,
            std::shared_ptr<Buffer>& arena);

/// Called before each piece of work: its name, and the share of the total that is done, 0 .. 1.
using OnProgress = std::function<void(const std::string& what, double done)>;

/// Every record of one training step on config.train.device, with equal ones combined, longest first. `measured` false:
/// only costs.
std::vector<Row> step_rows(train::RunConfig& config, Pool& pool, const Roofs& roofs, const Timing& timing,
                           bool measured, const OnProgress& progress);

/// Recomputes the speed of light with other roofs.
void relight(Row& row, const Roofs& roofs);

}  // namespace hpcdl::lab::roofline
