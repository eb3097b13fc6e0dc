#pragma once
// Common code of the demos: a config from a TOML file and the machine, and the metrics that a run has written.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "examples/demos/demos.h"
#include "hpcdl/train/trainer.h"

namespace hpcdl::demos {

/// A line of metrics.jsonl.
struct StepLine {
  double step = 0, loss = 0, samples_per_second = 0, data_wait_percent = 0;
  double comm_percent = -1, hidden_percent = -1;  // -1: one rank
};
struct EpochLine {
  double step = 0, epoch = 0, loss = 0, train_accuracy = 0, accuracy = 0;  // loss and accuracy: of images held out
};
struct Log {
  std::vector<StepLine> steps;
  std::vector<EpochLine> epochs;

  /// Over the steps after the first ones, which are warm-up.
  double samples_per_second() const;
  double data_wait_percent() const;
  double comm_percent() const;
  double hidden_percent() const;
};
Log read_log(const std::filesystem::path& run);

/// The TOML of a demo, "1_baseline", then `smaller` ("train.batch=64") if the device is a CPU, then the options,
/// then `more`.
void configure(train::RunConfig& config, std::string_view demo, const Options& options,
               const std::vector<std::string>& smaller, const std::vector<std::string>& more = {});
/// Writes `config` to a file for `hpcdl train -c`.
std::filesystem::path write_config(train::RunConfig& config, const std::filesystem::path& file);

/// Throws comm::Stopped if a signal ended the run early, because it is then not a result.
void require_whole(const train::RunSummary& run);
/// Trains in this process, into config.output, to the end.
train::RunSummary train_here(train::RunConfig& config, const Console& console);
/// Trains as `ranks` processes, `hpcdl launch -n RANKS -- train`, into config.output; returns the metrics that the
/// ranks wrote.
Log train_on_ranks(train::RunConfig& config, int ranks, const Options& options);

/// Number of devices (GPU) or cores (CPU), one for each rank.
int most_ranks(const Options& options);
/// 1, 2, 4, ... up to most_ranks(), at most 8; 1 and 2 on any CPU, which ranks can share.
std::vector<int> rank_counts(const Options& options);

void say(const Options& options, const std::string& line);
lab::Series series(std::string name, const std::vector<EpochLine>& epochs, double EpochLine::* value);
std::string percent(double share);  // 0.934 is "93.4 %"
std::vector<lab::Fact> machine_facts(const Options& options);

}  // namespace hpcdl::demos
