#pragma once
// What a run shows to people: a bar on a terminal, and lines that stay.

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "hpcdl/core/clock.h"
#include "hpcdl/core/progress.h"
#include "hpcdl/data/tokenize.h"

namespace hpcdl::train {

struct StepNumbers {
  std::int64_t step = 0, steps = 0;
  double loss = 0, lr = 0, grad_norm = 0;
  double per_second = 0, sol_percent = 0, data_wait_percent = 0;  // sol_percent < 0: not known
  const char* unit = "tok/s";                                     // of per_second
  double epoch = -1, accuracy = -1;               // passes over the data; share of right answers. < 0: not counted
  double seconds = 0, seconds_left = 0;           // of the run so far, and to its end
  double comm_percent = -1, hidden_percent = -1;  // time share of gradient exchange, and of that hidden by computing.
                                                  // < 0: one rank, or not known
  double disk_bytes = -1, exposed_percent = -1;  // of a step, to and from a disk, and the share of its time that waited
                                                 // for that; < 0: nothing lies on a disk
  double host_bytes = -1;                        // of a step, between a GPU and the host; < 0: none
  double wire_bytes = -1;                        // that this rank sends in a step. < 0: one rank
};

/// The line that stays. columns: of the terminal; the least important parts are left out, but never the time. 0: keeps
/// all.
std::string progress_line(const StepNumbers& n, int columns = 0);
Bar progress_bar(const StepNumbers& n);

/// Shows the progress of tokenizing.
data::OnProgress tokenize_progress(const Console& console);

class Progress {
 public:
  explicit Progress(const Console& console) : console_(console) {}
  Progress(const Progress&) = delete;
  ~Progress() { end_bar(); }
  /// Whether a bar is drawn, which uses numbers even if stay() does not need them.
  bool has_bar() const { return static_cast<bool>(console_.bar); }
  void show(const Bar& bar);
  /// A line that stays, if the last one is old enough; those of the first and the last step are always printed.
  void stay(const StepNumbers& n);
  /// A line that stays.
  void say(std::string_view line);
  void say_lines(std::string_view text);
  void end_bar();

 private:
  const Console& console_;
  Clock::time_point last_{};
  bool drawn_ = false;
};

}  // namespace hpcdl::train
