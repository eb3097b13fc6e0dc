#pragma once
// How rotary angles are stretched, so that a model trained on short texts reads longer ones.

#include <cmath>
#include <cstdint>
#include <numbers>

namespace hpcdl {

struct RopeScaling {
  /// linear: positions are divided by `factor` (Chen et al., 2023). llama3: only where fewer than low_freq_factor turns
  /// fit the original context; not at all where more than high_freq_factor do; a mixture in between.
  enum class Kind : std::uint8_t { none, linear, llama3 };
  Kind kind = Kind::none;
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  double original_context = 8192;
  bool operator==(const RopeScaling&) const = default;

  /// In radians per position.
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
