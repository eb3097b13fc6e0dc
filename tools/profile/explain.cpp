#include "tools/profile/explain.h"

#include <algorithm>

namespace hpcdl::lab {

/// The first step is recorded for runs that have only one; then the second, and after it one of every `every`.
Explain::Explain(const Roofs& roofs, const Options& options, std::function<void(std::string_view)> say)
    : roofs_(roofs),
      options_(options),
      say_(std::move(say)),
      recorder_([every = std::max<std::int64_t>(options.every, 1)](
                    std::int64_t n) { return n == 0 || n % every == 1 % every ? Look::record : Look::away; },
                [this](StepTrace&& step) { add(step); }),
      last_report_(now_ns()) {}

void Explain::add(const StepTrace& step) {
  if (cold_) totals_ = {};
  cold_ = totals_.steps() == 0 && !cold_;
  totals_.add(step);
  const auto now = now_ns();
  if (cold_ || static_cast<double>(now - last_report_) * 1e-9 < options_.seconds) return;
  last_report_ = now;
  if (say_) say_(text());
}

std::vector<Advice> Explain::list() const { return advice(rows(recorder_.programs(), totals_, roofs_), roofs_); }

std::string Explain::text() const { return totals_.steps() ? advice_text(list(), totals_.step_seconds()) : ""; }

}  // namespace hpcdl::lab
