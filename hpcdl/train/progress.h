#pragma once
// What a person sees of a run: one line that is rewritten on a terminal, whole lines from time to time elsewhere.

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "hpcdl/core/clock.h"
#include "hpcdl/data/tokenize.h"

namespace hpcdl::train {

/// Where lines go. Null functions drop them.
struct Console {
  std::function<void(std::string_view)> line;    // a whole line
  std::function<void(std::string_view)> status;  // replaces the line at the bottom; null where there is no terminal
};

struct StepNumbers {
  std::int64_t step = 0, steps = 0;
  double loss = 0, lr = 0, grad_norm = 0;
  double per_second = 0, sol_percent = 0, data_wait_percent = 0;  // sol_percent < 0: not known
  const char* unit = "tok/s";                                     // of per_second
  double epoch = -1, accuracy = -1;  // passes over the data; share of right answers. < 0: not counted
  double seconds_left = 0;
  double comm_percent = -1,
         hidden_percent =
             -1;  // of the time: gradients were exchanged; of that: behind computing. < 0: one rank, or not known
};

std::string progress_line(const StepNumbers& n);

/// Shows on the status line how tokenizing goes; nothing without one.
data::OnProgress tokenize_progress(const Console& console);

class Progress {
 public:
  explicit Progress(const Console& console) : console_(console) {}
  /// Shows it if the last one is old enough; the first and the last step always.
  void show(const StepNumbers& n);
  /// A line that stays.
  void say(std::string_view line);
  void say_lines(std::string_view text);

 private:
  const Console& console_;
  Clock::time_point last_{};
};

}  // namespace hpcdl::train
