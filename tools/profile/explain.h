#pragma once
// What `hpcdl train --explain` reports during a run: some steps are recorded, and the records that lose the most time
// are named from time to time and at the end.

#include "tools/profile/advice.h"
#include "tools/profile/recorder.h"

namespace hpcdl::lab {

class Explain : public train::Observer {
 public:
  struct Options {
    std::int64_t every = 10;  // one of this many steps is recorded
    double seconds = 30;      // between two reports
  };
  /// `say` receives whole lines.
  Explain(const Roofs& roofs, const Options& options, std::function<void(std::string_view)> say);

  /// What is known so far, for example at the end; "" before the first recorded step.
  std::string text() const;
  std::vector<Advice> list() const;
  std::int64_t recorded_steps() const { return totals_.steps(); }

  void begin_step(std::int64_t step) override { recorder_.begin_step(step); }
  void end_step(std::int64_t step) override { recorder_.end_step(step); }
  void begin(train::Stage stage) override { recorder_.begin(stage); }
  void end(train::Stage stage) override { recorder_.end(stage); }
  void run(const Instance& exe, Stream& s) override { recorder_.run(exe, s); }

 private:
  void add(const StepTrace& step);

  Roofs roofs_;
  Options options_;
  std::function<void(std::string_view)> say_;
  Recorder recorder_;
  Totals totals_;
  bool cold_ = false;             // totals_ holds only the first step, which touches memory for the first time
  std::int64_t last_report_ = 0;  // now_ns()
};

}  // namespace hpcdl::lab
