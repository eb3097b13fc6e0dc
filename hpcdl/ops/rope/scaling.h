#pragma once
// How rotary angles are scaled, so that a model trained on short texts can read longer ones.

#include <cstdint>
#include <vector>

namespace hpcdl {

struct RopeScaling {
  /// linear: positions are divided by `factor` (Chen et al., 2023). dynamic: a larger base for texts beyond the context,
  /// which we refuse; within it nothing changes. llama3: as linear for angles with fewer than low_freq_factor turns in the
  /// original context; unchanged above high_freq_factor turns; interpolated in between. yarn: the same between slow_turns
  /// and fast_turns, linear in the index of the angle, and larger vectors (Peng et al., 2023). longrope: a divisor for
  /// each angle, one list for texts up to the original context and one for longer texts, and larger vectors (Ding et al.,
  /// 2024).
  enum class Kind : std::uint8_t { none, linear, dynamic, llama3, yarn, longrope };
  Kind kind = Kind::none;
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  double original_context = 8192;
  double fast_turns = 32, slow_turns = 1;  // of yarn
  bool whole_indices = true;               // yarn rounds the first and last index that it interpolates
  double magnitude = 1;                    // cosines and sines are multiplied by it
  std::vector<double> short_factors = {}, long_factors = {};  // of longrope, one for each angle
  bool operator==(const RopeScaling&) const = default;

  /// Angles in radians per position of the `dims` / 2 pairs of a head. long_texts: for texts beyond the original context.
  std::vector<double> frequencies(std::int64_t dims, double theta, bool long_texts = false) const;
};

}  // namespace hpcdl
