#pragma once
// Learning-rate schedules: pure functions of the step, so that a resumed run needs no state for them.

#include <cstdint>

namespace hpcdl {

enum class ScheduleKind : std::uint8_t {
  constant,
  cosine,  // Loshchilov and Hutter, "SGDR", 2017: half a cosine wave down to `min`
  linear,  // linearly down to `min`
  wsd,     // warm-up, stable, decay: Hu et al., "MiniCPM", 2024; the last `decay_fraction` goes down linearly
};

/// All kinds rise linearly over the first `warmup` steps: step 0 has lr / warmup, step warmup - 1 has lr.
struct Schedule {
  ScheduleKind kind = ScheduleKind::cosine;
  double lr = 1e-3, min_lr = 0;
  std::int64_t steps = 1, warmup = 0;
  double decay_fraction = 0.2;  // wsd only

  /// Learning rate of 0-based `step`; after the end it does not change.
  double at(std::int64_t step) const;
};

/// How to scale a learning rate that was chosen for another batch size.
enum class LrScaling : std::uint8_t {
  none,
  linear,  // times the ratio of batch sizes: Goyal et al., "Accurate, large minibatch SGD", 2017. For SGD, with warm-up
  sqrt,    // times its square root: Krizhevsky, "One weird trick", 2014. For Adam: Malladi et al., "On the SDEs and
           // scaling rules for adaptive gradient algorithms", 2022
};

/// The factor for a learning rate that was chosen for `base` samples in a step, if a step has `batch`.
double lr_factor(LrScaling scaling, std::int64_t batch, std::int64_t base);

}  // namespace hpcdl
