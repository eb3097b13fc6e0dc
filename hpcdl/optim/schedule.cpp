#include "hpcdl/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "hpcdl/core/error.h"

namespace hpcdl {

double Schedule::at(std::int64_t step) const {
  if (step < warmup) return lr * static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (kind == ScheduleKind::constant) return lr;
  // The first step after warm-up has progress 0, the last step 1.
  const double span = static_cast<double>(std::max<std::int64_t>(steps - 1 - warmup, 1));
  const double progress = std::min(static_cast<double>(step - warmup) / span, 1.0);
  double share = 1;  // share of lr - min_lr
  if (kind == ScheduleKind::cosine) share = 0.5 * (1 + std::cos(std::numbers::pi * progress));
  else if (kind == ScheduleKind::linear) share = 1 - progress;
  else if (decay_fraction > 0) share = std::min(1.0, (1 - progress) / decay_fraction);
  return min_lr + (lr - min_lr) * share;
}

double lr_factor(LrScaling scaling, std::int64_t batch, std::int64_t base) {
  if (scaling == LrScaling::none) return 1;
  require(batch > 0 && base > 0, "schedule", "expected batch sizes above 0 to scale the learning rate, got {} and {}",
          batch, base);
  const double ratio = static_cast<double>(batch) / static_cast<double>(base);
  return scaling == LrScaling::linear ? ratio : std::sqrt(ratio);
}

}  // namespace hpcdl
