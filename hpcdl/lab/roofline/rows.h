#pragma once
// One line of a roofline: a kernel, what it costs, how fast light would be, and how fast it was.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hpcdl/lab/cases.h"
#include "hpcdl/lab/compare/environment.h"
#include "hpcdl/lab/light.h"
#include "hpcdl/train/config.h"

namespace hpcdl::lab::roofline {

/// A measured time may undercut its roof by so much before it counts as a fault: roofs are the best of a few rounds,
/// and those wander by about a percent.
inline constexpr double kAbove = 1.02;

struct Row {
  std::string source;            // "seed", "case"; "step": records of a training step
  std::string op, shape, dtype;  // "softmax", "4096x1024", "f32"; of a step, the unit of its arithmetic
  std::string pass;              // "fwd", "fwd+bwd"; of a step: forward, recompute, backward, update
  std::string scope;             // of a step: where in the model, "layers.*.mlp"
  std::string device = "cpu";
  std::int64_t count = 1;  // equal records of a step; all figures are of one
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
  /// Faster than light: the declared cost or the measurement is wrong. Never a win.
  bool fault() const { return measured() && share() > kAbove; }
  /// "softmax 4096x1024 f32 fwd+bwd".
  std::string label() const;
};

/// The three that explain the picture: vector add, a large product, a fused softmax.
std::vector<Case> seed_cases();

/// Costs and roofs alone.
Row row_of(const Case& c, const std::string& source, const Roofs& roofs);

struct Timing {
  double seconds = 0.08;  // of repeats of one case; three runs at least
  int step_runs = 3;
};

/// Where kernels run, and the clock that times them.
struct Place {
  Stream stream;
  std::unique_ptr<compare::Environment> clock;

  Place(Device device, Pool& pool);
};

/// row_of(), timed; on a GPU as a captured graph. `arena` is used and left behind for the next.
Row measure(const Case& c, const std::string& source, const Place& place, const Roofs& roofs, const Timing& timing,
            std::shared_ptr<Buffer>& arena);

/// Called before each piece of work: what, and how much of all is done, 0 .. 1.
using OnProgress = std::function<void(const std::string& what, double done)>;

/// Every record of one training step on config.train.device, equal ones together, those that take longest first.
/// `measured` false: costs alone.
std::vector<Row> step_rows(train::RunConfig& config, Pool& pool, const Roofs& roofs, const Timing& timing,
                           bool measured, const OnProgress& progress);

/// Light anew, under other roofs.
void relight(Row& row, const Roofs& roofs);

}  // namespace hpcdl::lab::roofline
