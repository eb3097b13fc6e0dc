#pragma once
// What the verbs that train have in common.

#include <functional>
#include <string>
#include <vector>

#include "cli/threads_option.h"
#include "cli/tune_option.h"
#include "cli/verb.h"
#include "hpcdl/train/config.h"

namespace hpcdl::cli {

struct TrainOptions {
  std::vector<std::string> configs;
  std::string out;
  std::string device;
  bool json = false, print_config = false, schema = false, explain = false, memory = false, timestamps = false;
  bool plan_first = false;  // says how much memory the run takes before it begins
  TuneOption tune;
  ThreadsOption threads;
};

/// Adds the options, and the keys of a run to the end of --help.
void add_train_options(const Command& sub, TrainOptions& o);

/// Runs the training that the options describe. `defaults` changes the defaults of the config; `words` are further
/// overrides, as on the command line.
int run_training(TrainOptions& o, const Command& sub, const std::function<void(train::RunConfig&)>& defaults,
                 std::vector<std::string> words);

}  // namespace hpcdl::cli
