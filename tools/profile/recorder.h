#pragma once
// Watches a training run and passes on what it saw of every step that it was told to watch.

#include <functional>
#include <memory>
#include <vector>

#include "tools/profile/timer.h"

namespace hpcdl::lab {

enum class Look : unsigned char { away, plain, record };  // not at all; begin and end of the step; every record

class Recorder : public train::Observer {
 public:
  /// `policy(n)` decides how to watch the n-th step of this run (0-based, independent of its number); `sink` receives
  /// every step that was watched, when it has ended.
  Recorder(std::function<Look(std::int64_t n)> policy, std::function<void(StepTrace&&)> sink);

  /// The programs seen so far; valid as long as the recorder.
  const std::deque<ProgramFacts>& programs() const { return programs_; }
  int threads() const { return threads_; }
  /// How records were timed, if that matters.
  std::string how() const { return timer_ ? timer_->how() : ""; }

  void begin_step(std::int64_t step) override;
  void end_step(std::int64_t step) override;
  void begin(train::Stage stage) override;
  void end(train::Stage stage) override;
  void run(const Instance& exe, Stream& s) override;

 private:
  int program_of(const Instance& exe, Device device);

  std::function<Look(std::int64_t)> policy_;
  std::function<void(StepTrace&&)> sink_;
  std::deque<ProgramFacts> programs_;
  std::unique_ptr<RecordTimer> timer_;
  std::int64_t steps_ = 0;
  int threads_ = 1;
  Look look_ = Look::away;
  train::Stage stage_ = train::Stage::pass;
  StepTrace trace_;
};

/// Bytes of the arena that are in use during each record.
std::vector<std::int64_t> live_bytes(const Program& program, const Plan& plan);

}  // namespace hpcdl::lab
