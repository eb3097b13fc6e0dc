#pragma once
// Passes over rows of choices on a CPU.

#include "hpcdl/ops/swiglu/swiglu.h"

namespace hpcdl::cpu {

/// Rows of the choices of one expert, in the order of `choices`.
struct ExpertSlopes {
  View gate, up;  // a row per choice
  const std::int32_t* choices;
  const float* weights;  // of each choice
  float* dweights;       // of each choice; null: not wanted
  bool accumulate;       // dweights
  View dz;               // gradient of unweighted hidden values
  Tensor hidden;         // weight * act(gate) * up
  Tensor dgate, dup;     // one of them may be dz
};
template <class Isa> void expert_slopes(Isa, Pool&, const ExpertSlopes&, Swiglu::Gate by);

/// dx (+)= for each token the sum of the rows of its choices, in their order. `row_of`: of each choice; -1: none.
template <class Isa> void sum_of_choices(Isa, Pool&, const Grad& dx, View rows, const std::int32_t* row_of, int count);

}  // namespace hpcdl::cpu
