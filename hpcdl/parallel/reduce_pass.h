#pragma once
// Sums of gradients over ranks while backward still runs, as an edit of the recorded pass: the reduction of a unit comes
// after the last record that uses one of its gradients.

#include <span>
#include <string>
#include <vector>

#include "hpcdl/graph.h"
#include "hpcdl/ops/wire_codes/wire_codes.h"
#include "hpcdl/parallel/unit_exchange.h"
#include "hpcdl/tensor.h"

namespace hpcdl::parallel {

/// A parameter, and the number of the elements of its gradient, which programs call NAME.grad.
struct ReadyGradient {
  std::string name;
  Spec spec;  // F32
};

/// The gradients, in the order in which the program completes those of the parameters of these names; at the end those
/// that it does not write.
std::vector<ReadyGradient> in_order_of_completion(const Program& program, std::vector<ReadyGradient> gradients);

/// Where a pass leaves the gradients.
struct GradientPlace {
  enum class Sums : unsigned char {
    whole,     // every rank gets the whole sum
    in_place,  // every rank gets its share, in its place; the rest of a unit is undefined
    apart,     // every rank gets its share in other memory; gradients live in the arena, until they are summed
  };
  Sums sums = Sums::whole;
  Tensor block = {};   // f32, of the units; absent memory is enough to record. Not with `apart`
  Tensor shares = {};  // f32, of UnitPlan::share_elements(); only with `apart`
  /// Sums the shares further, over ranks that have the same ones (plan_of_shares); it must outlive the recording.
  const UnitExchange* across = nullptr;
  WireCode wire = WireCode::none;  // of what ranks send each other, who sum in f32
  /// false: the pass exchanges nothing, and leaves this rank's own gradients; what is `apart` is lost.
  bool exchange = true;
};

/// The pass, whose gradients are the windows of `place.block` that the plan of `units` says, with their reductions.
/// order: as the tensors of the plan. `units` must outlive the recording. The same on every rank; runs of it are
/// collective.
Recording reduce_pass(Recording pass, const UnitExchange& units, std::span<const ReadyGradient> order,
                      const GradientPlace& place);

}  // namespace hpcdl::parallel
