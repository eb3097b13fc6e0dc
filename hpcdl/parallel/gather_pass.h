#pragma once
// Values that other ranks have updated, as an edit of the pass that reads them first: each rank sends its shares, and
// all gathers begin with the pass, in the order in which its records need the units. Only records that read a unit wait
// for it.

#include <cstdint>
#include <span>
#include <string>

#include "hpcdl/graph.h"
#include "hpcdl/parallel/unit_exchange.h"
#include "hpcdl/tensor.h"

namespace hpcdl::parallel {

/// A flat block of values with the layout of the units, in which the tensors of the plan are windows that programs call
/// by `names`, in the order of the plan; a tensor without a name is not in the block.
struct GatheredBlock {
  std::string name;        // of its units in programs: "values.layers.3"
  Tensor memory;           // absent memory is enough to record
  std::int64_t begin = 0;  // the element of the plan at which it begins
  std::span<const std::string> names;
};

/// The pass, after which and in which the units of the blocks that have named tensors hold the shares of all ranks.
/// `units` must outlive the recording. The same on every rank; runs of it are collective.
Recording gather_pass(Recording pass, const UnitExchange& units, std::span<const GatheredBlock> blocks);

}  // namespace hpcdl::parallel
