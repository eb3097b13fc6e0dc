#pragma once
// What the benches of training steps on many ranks have in common.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/threads_option.h"
#include "tools/ranks/steps.h"

namespace hpcdl::cli {

struct BenchStepsOptions {
  io::ModelConfig model{.layers = 4, .heads = 8, .width = 512, .context = 256, .vocab = 4096};
  lab::StepsOptions steps;
  int ranks = 0;
  ThreadsOption threads;
  bool bf16 = false;
  std::string device = "cpu";
  std::vector<std::string> json;
};

/// How a report is told.
struct StepsReportForms {
  nlohmann::ordered_json (*json)(const lab::StepsReport&);
  std::string (*table)(const lab::StepsReport&);
};

/// On every rank of `world`: times the variants of a model of this family; rank 0 tells the result.
void bench_steps_on_rank(const BenchStepsOptions& o, io::Family family, const std::vector<lab::StepVariant>& variants,
                         const StepsReportForms& forms, const comm::Group& world, Device device);

}  // namespace hpcdl::cli
