#include "hpcdl/train/meter.h"

namespace hpcdl::train {

void Meter::add(double seconds, double waited) {
  ++steps_, ++interval_steps_;
  seconds_ += seconds;
  interval_seconds_ += seconds;
  interval_waited_ += waited;
  recent_ += (seconds - recent_) * (recent_ > 0 ? 0.1 : 1);
}

void Meter::fill_recent(StepNumbers& n) const {
  n.per_second = static_cast<double>(samples_) / recent_;
  n.seconds = seconds_since(begin_);
  n.seconds_left = static_cast<double>(n.steps - n.step) * n.seconds / static_cast<double>(steps_);
}

void Meter::fill_interval(StepNumbers& n) {
  const double per_step = interval_seconds_ / static_cast<double>(interval_steps_);
  n.per_second = static_cast<double>(samples_) / per_step;
  n.sol_percent = light_ < 0 ? -1 : 100 * light_ / per_step;
  n.data_wait_percent = 100 * interval_waited_ / interval_seconds_;
  fill_moved(n);
  if (wire_ > 0) n.wire_bytes = wire_;
  const auto* ranks = step_.ranks();
  if (!ranks || (step_.on_gpu() && ranks->times().passes <= exchanged_.passes)) return;
  const auto now = ranks->times();
  const parallel::ExchangeTimes since{now.seconds - exchanged_.seconds, now.waited_seconds - exchanged_.waited_seconds,
                                      now.passes - exchanged_.passes};
  // A GPU reports only some passes.
  const double steps_of_one =
      since.passes > 0 ? static_cast<double>(interval_steps_) / static_cast<double>(since.passes) : 1;
  n.comm_percent = 100 * since.seconds * steps_of_one / interval_seconds_;
  n.hidden_percent = 100 * since.hidden();
  exchanged_ = now;
}

void Meter::fill_moved(StepNumbers& n) {
  if (const auto bytes = step_.host_bytes(); bytes > 0) n.host_bytes = static_cast<double>(bytes);
  const auto now = step_.disk_traffic();
  if (now.bytes == 0) return;
  n.disk_bytes = static_cast<double>(now.bytes - moved_.bytes) / static_cast<double>(interval_steps_);
  n.exposed_percent = 100 * (now.waited_seconds - moved_.waited_seconds) / interval_seconds_;
  moved_ = now;
}

void Meter::fill(RunSummary& summary, std::int64_t in_row) const {
  summary.seconds = seconds_;
  if (steps_ == 0) return;
  const auto steps = static_cast<double>(steps_);
  if (const auto* g = step_.ranks(); g && (!step_.on_gpu() || g->times().passes > 0)) {
    summary.comm_seconds = g->times().seconds * (step_.on_gpu() ? steps / static_cast<double>(g->times().passes) : 1);
    summary.hidden_percent = 100 * g->times().hidden();
  }
  const double units_per_second = steps * static_cast<double>(samples_) / seconds_;
  summary.samples_per_second = units_per_second / static_cast<double>(in_row);
  if (!summary.images) summary.tokens_per_second = units_per_second;
  if (light_ >= 0) summary.sol_percent = 100 * light_ * steps / seconds_;
}

}  // namespace hpcdl::train
