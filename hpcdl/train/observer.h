#pragma once
// The interface through which the lab watches a training run. Whatever an observer does, the numbers of the run stay
// the same.

#include "hpcdl/instance.h"

namespace hpcdl::train {

/// Where the time of a run goes, besides the programs.
enum class Stage : unsigned char { data, pass, update, evaluate, save };

class Observer {
 public:
  virtual ~Observer() = default;
  /// 0-based number of the optimizer step.
  virtual void begin_step(std::int64_t) {}
  virtual void end_step(std::int64_t) {}
  virtual void begin(Stage) {}
  virtual void end(Stage) {}
  /// Runs all records of a program in order, like exe.run(s), and may read the clock between them.
  virtual void run(const Instance& exe, Stream& s) { exe.run(s); }
};

/// Marks a stage for its lifetime. A null observer costs one comparison.
class InStage {
 public:
  InStage(Observer* observer, Stage stage) : observer_(observer), stage_(stage) {
    if (observer_) observer_->begin(stage_);
  }
  ~InStage() {
    if (observer_) observer_->end(stage_);
  }
  InStage(const InStage&) = delete;
  InStage& operator=(const InStage&) = delete;

 private:
  Observer* observer_;
  Stage stage_;
};

}  // namespace hpcdl::train
