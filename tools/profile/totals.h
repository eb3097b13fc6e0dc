#pragma once
// Sums over steps, and the ranked rows computed from them: equal records of all layers are one row.

#include <functional>
#include <vector>

#include "hpcdl/machine/roofs.h"
#include "tools/profile/steps.h"

namespace hpcdl::lab {

struct RecordTotal {
  double seconds = 0;
  std::vector<double> busy;  // per thread; empty: not measured
};

/// The sums of recorded steps.
class Totals {
 public:
  /// Steps that were not recorded are ignored.
  void add(const StepTrace& step);

  std::int64_t steps() const { return steps_; }
  /// Per step.
  double step_seconds() const { return mean(seconds_); }
  double stage_seconds(train::Stage stage) const { return mean(stages_[static_cast<std::size_t>(stage)]); }
  double record_seconds() const { return mean(records_); }
  /// Runs of a program per step.
  double runs(std::size_t program) const { return program < programs_.size() ? mean(programs_[program].runs) : 0; }
  /// Per step, over all runs of the program.
  RecordTotal record(std::size_t program, std::size_t record) const;

 private:
  struct OfProgram {
    double runs = 0;
    std::vector<double> seconds;  // per record
    std::vector<double> busy;     // per record and thread
    std::size_t threads = 0;
  };
  double mean(double sum) const { return steps_ ? sum / static_cast<double>(steps_) : 0; }

  std::int64_t steps_ = 0;
  double seconds_ = 0, records_ = 0;
  double stages_[5] = {};
  std::vector<OfProgram> programs_;
};

enum class Bound : unsigned char { none, compute, memory, network, launch };
std::string_view bound_name(Bound bound);

struct Light {
  double seconds = 0;  // no implementation can take less
  Bound bound = Bound::none;
  bool network_known = true;  // false: the network that it waits for was not measured, and `seconds` lacks it
};
Light light_of(const ProgramFacts& facts, const Record& record, const Roofs& roofs);

/// Equal records of all layers, or one record. All numbers per step.
struct Row {
  std::string name, scope;  // "linear.backward", "layers.*.mlp.c_fc"
  Phase phase = Phase::forward;
  int program = 0, record = 0;  // the slowest of them
  double calls = 0;
  double seconds = 0, light = 0;
  double flops = 0, bytes = 0;
  double busy = -1;     // share of the threads' time that was work; < 0: unknown
  double balance = -1;  // mean over largest working time of a thread; < 0: unknown
  Bound bound = Bound::none;
  DType dtype = DType::f32;  // a 16-bit type if one of its operands has that type
  bool network_known = true;

  double lost() const { return network_known && seconds > light ? seconds - light : 0; }
  double of_roof() const { return seconds > 0 ? light / seconds : 0; }
  /// "87.0 %", "network not measured", or "-" if nothing is known.
  std::string roof_text() const;
  std::string label() const { return scope.empty() ? name : name + ' ' + scope; }
};

/// Longest first. `fold` false: one row per record.
std::vector<Row> rows(const std::deque<ProgramFacts>& programs, const Totals& totals, const Roofs& roofs,
                      bool fold = true);

/// Seconds of one step at the speed of light.
double light_seconds(const std::vector<Row>& rows);

}  // namespace hpcdl::lab
