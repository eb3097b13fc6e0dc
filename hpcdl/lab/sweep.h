#pragma once
// Shapes that no list names: what real models have, one or a few beside it, and any, drawn from a seed. For bench, to
// find where a kernel falls off.

#include "hpcdl/lab/cases.h"

namespace hpcdl::lab {

struct SweepOptions {
  int shapes = 0;             // of each op
  std::uint64_t seed = 1;     // the same shapes for the same seed, whatever other ops are drawn beside them
  bool large = false;         // of a GPU
  bool forward = false;       // leave out forward and backward together
  DType dtype = DType::none;  // none: f32 or bf16, drawn as well
};

/// Cases of the ops named (cases.h; none: all) whose dims there is a way to draw. Throws UsageError where an op is named
/// that has none.
std::vector<Case> swept_cases(const std::vector<std::string>& names, const SweepOptions& o);

}  // namespace hpcdl::lab
