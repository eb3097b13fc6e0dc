#pragma once
// The magnitudes of past steps from which delayed scales follow. Source: Micikevicius et al., "FP8 formats for deep
// learning", 2022, and the recipe that NVIDIA's libraries have used since.
//
// A history is a tensor (1 + kAmaxSteps, T), f32, with a column for each of T tensors of a step. Row 0 is the largest
// magnitude of the tensor in the passes of this step so far, rows 1 to kAmaxSteps are those of the last steps, newest
// first; 0: unknown. The scale of a tensor follows from the largest of the last steps.

#include <algorithm>
#include <cstdint>

#include "hpcdl/core/device_macros.h"
#include "hpcdl/tensor.h"

namespace hpcdl {

/// Steps after which a magnitude is forgotten.
inline constexpr int kAmaxSteps = 16;

inline Spec amax_history_spec(std::int64_t tensors) { return {{1 + kAmaxSteps, tensors}, DType::f32}; }

/// Whether it is one, with such a column.
inline bool is_amax_history(const Spec& s, std::int64_t column) {
  return s.dtype == DType::f32 && s.shape.rank() == 2 && s[0] == 1 + kAmaxSteps && column >= 0 && column < s[1];
}

/// The largest magnitude of a column over the last steps; 0: none is known.
[[gnu::always_inline]] HPCDL_HOST_DEVICE inline float largest_of_steps(const float* history, long long tensors,
                                                                       long long column) {
  float most = 0;
  for (int i = 1; i <= kAmaxSteps; ++i) {
    const float x = history[i * tensors + column];
    most = x > most ? x : most;
  }
  return most;
}

}  // namespace hpcdl
