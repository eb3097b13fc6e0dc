#include "hpcdl/train/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "hpcdl/core/units.h"

namespace hpcdl::train {

std::string progress_line(const StepNumbers& n) {
  std::string line = fmt::format("step {}/{}", n.step, n.steps);
  if (n.epoch >= 0) line += fmt::format("  epoch {:.2f}", n.epoch);
  line += fmt::format("  loss {:.4f}", n.loss);
  if (n.accuracy >= 0) line += fmt::format("  accuracy {:.2f}%", 100 * n.accuracy);
  line += fmt::format("  lr {:.2e}  norm {}  {} {}", n.lr,
                      std::isfinite(n.grad_norm) ? fmt::format("{:.2f}", n.grad_norm) : "not finite",
                      format_count(n.per_second), n.unit);
  if (n.sol_percent >= 0) line += fmt::format("  {:.0f}% of light", n.sol_percent);
  if (n.comm_percent >= 0) line += fmt::format("  comm {:.0f}% ({:.0f}% hidden)", n.comm_percent, n.hidden_percent);
  line += fmt::format("  data {:.1f}%  {} left", n.data_wait_percent, format_duration(n.seconds_left));
  return line;
}

data::OnProgress tokenize_progress(const Console& console) {
  if (!console.status) return {};
  return
      [status = console.status, stage = std::string(), start = Clock::now()](const data::TokenizeProgress& p) mutable {
        if (p.stage != stage) {
          stage = p.stage;
          start = Clock::now();
        }
        status(data::describe(p, seconds_since(start)));
      };
}

void Progress::show(const StepNumbers& n) {
  const auto now = Clock::now();
  const bool last = n.step >= n.steps;
  const auto pause = console_.status ? std::chrono::milliseconds(100) : std::chrono::milliseconds(2000);
  if (!last && last_ != Clock::time_point{} && now - last_ < pause) return;
  last_ = now;
  if (console_.status && !last) console_.status(progress_line(n));
  else say(progress_line(n));
}

void Progress::say_lines(std::string_view text) {
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    say(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

void Progress::say(std::string_view line) {
  if (console_.status) console_.status("");
  if (console_.line) console_.line(line);
}

}  // namespace hpcdl::train
