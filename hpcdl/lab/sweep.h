#pragma once
// Random shapes from a seed: those of real models, their neighbours, and arbitrary ones. For bench, to
// find shapes at which a kernel is slow.

#include "hpcdl/lab/cases.h"

namespace hpcdl::lab {

struct SweepOptions {
  int shapes = 0;             // of each op
  std::uint64_t seed = 1;     // the same shapes for the same seed, independent of other ops
  bool large = false;         // of a GPU
  bool forward = false;       // leave out forward and backward together
  DType dtype = DType::none;  // none: f32 or bf16, drawn as well
};

/// Cases of the named ops (cases.h; none: all) whose dims can be drawn. Throws UsageError if an op is named
/// whose dims cannot.
std::vector<Case> swept_cases(const std::vector<std::string>& names, const SweepOptions& o);

}  // namespace hpcdl::lab
