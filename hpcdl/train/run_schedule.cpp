#include "hpcdl/train/run_schedule.h"

#include <algorithm>

namespace hpcdl::train {

std::int64_t rows_of_step(const RunConfig& config, const parallel::Mesh& mesh) {
  return config.train.batch * config.train.accumulate * mesh.dp().size();
}

std::int64_t steps_from(const data::LoaderState& at, std::int64_t epochs, std::int64_t rows, std::int64_t of_step) {
  const auto left = epochs * rows - at.epoch * rows - at.index;
  return std::max<std::int64_t>(left + of_step - 1, 0) / of_step;
}

Schedule run_schedule(const RunConfig& config, std::int64_t rows_of_step, std::int64_t steps, Progress& progress) {
  const auto& t = config.train;
  const double factor = lr_factor(t.lr_scaling, rows_of_step, t.base_batch > 0 ? t.base_batch : t.batch * t.accumulate);
  const Schedule schedule{t.schedule, t.lr * factor, t.min_lr * factor, steps, t.warmup};
  if (t.warmup > steps)
    progress.say(
        fmt::format("warning: train.warmup = {} is more than the {} steps of the run, so the learning rate reaches "
                    "only {:.3g} of {:.3g}",
                    t.warmup, steps, schedule.at(steps - 1), schedule.lr));
  if (t.lr_scaling != LrScaling::none)
    progress.say(fmt::format(
        "learning rate {:.3g} x {:.3g} = {:.3g} ({} scaling to {} samples in a step){}", t.lr, factor, schedule.lr,
        io::enum_name(t.lr_scaling), rows_of_step,
        factor > 1 && t.warmup == 0 ? "; without warm-up a larger rate may diverge: see train.warmup" : ""));
  return schedule;
}

}  // namespace hpcdl::train
