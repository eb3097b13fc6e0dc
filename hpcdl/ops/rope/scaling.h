#pragma once
// How rotary angles are scaled, so that a model trained on short texts can read longer ones.

#include <cmath>
#include <cstdint>
#include <numbers>

namespace hpcdl {

struct RopeScaling {
  /// linear: positions are divided by `factor` (Chen et al., 2023). llama3: the same for angles with fewer than
  /// low_freq_factor turns in the original context; unchanged above high_freq_factor turns; interpolated in between.
  enum class Kind : std::uint8_t { none, linear, llama3 };
  Kind kind = Kind::none;
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  double original_context = 8192;
  bool operator==(const RopeScaling&) const = default;

  /// Angle in radians per position.
  double operator()(double frequency) const {
    if (kind == Kind::none) return frequency;
    const double turns = original_context * frequency / (2 * std::numbers::pi);
    if (kind == Kind::linear || turns < low_freq_factor) return frequency / factor;
    if (turns > high_freq_factor) return frequency;
    const double kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
    return std::lerp(frequency / factor, frequency, kept);
  }
};

}  // namespace hpcdl
