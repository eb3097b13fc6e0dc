#pragma once
// The numbers that a run writes: metrics.jsonl and TensorBoard files. Only the leading rank writes them.

#include <filesystem>
#include <optional>

#include "hpcdl/io/jsonl.h"
#include "hpcdl/io/tensorboard.h"
#include "hpcdl/train/task.h"

namespace hpcdl::train {

class RunLog {
 public:
  static constexpr const char* kMetrics = "metrics.jsonl";
  /// Appends to the files in `folder`, after removing everything after `resumed_at`.
  void open(const std::filesystem::path& folder, std::optional<std::int64_t> resumed_at);
  /// One line of metrics.jsonl, and the same numbers under tags that common dashboards know.
  void write(const io::Json& line, std::int64_t step);
  void flush();

 private:
  std::optional<io::JsonlWriter> metrics_;
  std::optional<io::TensorBoardWriter> tensorboard_;
};

/// Whether metrics.jsonl in `folder` has an evaluation after this step.
bool evaluated(const std::filesystem::path& folder, std::int64_t step);

/// The numbers of a step as a line of metrics; `seen`: samples since the run's first step, in the task's units.
io::Json metrics_line(const StepNumbers& n, const Units& units, std::int64_t seen);

}  // namespace hpcdl::train
