#pragma once
// Values of which every rank keeps a share only, as an edit of a pass that reads them: the units of a part of the model
// are gathered into the arena shortly before the pass needs that part, and their memory is free again after the last
// record that reads them. Source: stage 3 of Rajbhandari et al., "ZeRO: memory optimizations toward training trillion
// parameter models", SC 2020.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "hpcdl/graph.h"
#include "hpcdl/ops/wire_codes/wire_codes.h"
#include "hpcdl/parallel/held.h"
#include "hpcdl/parallel/unit_exchange.h"
#include "hpcdl/tensor.h"

namespace hpcdl::parallel {

/// One kind of values of the tensors of a plan: the values themselves, or their 16-bit copies.
struct ShardedBlock {
  std::string name;                     // of its units in programs: "values.layers.3"
  const UnitExchange* units = nullptr;  // which must outlive the edited pass
  Tensor shares;  // of this rank, unit by unit from the beginning of the plan; absent memory is enough to record
  std::span<const std::string> names;  // what programs call the tensors; empty: not in the block
  WireCode wire = WireCode::none;      // as which shares travel; then a pass reads rounded values
};

/// When the pass holds which units, by Unit::owner (held.h).
std::vector<Held> held_units(const Program& pass, std::span<const ShardedBlock> blocks, int ahead);

/// The pass, which gathers each unit once for each time that held_units() says, if records use the unit then. The same
/// on every rank; runs of it are collective.
Recording shard_pass(Recording pass, std::span<const ShardedBlock> blocks, int ahead);

}  // namespace hpcdl::parallel
