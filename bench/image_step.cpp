// Our side of bench/peers/image_step.py: one training step of an image classifier (forward, backward, SGD with momentum) for every line on stdin.
//   image_step simple_cnn|resnet18 BATCH SIZE f32|bf16 [DEVICE]        with --records first: seconds by op and phase of 10 steps, and no steps

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/core/rng.h"
#include "hpcdl/lab/compare/environment.h"
#include "hpcdl/models/image_model.h"
#include "hpcdl/train/train_step.h"

namespace {

using namespace hpcdl;

/// Seconds of each kind of record over all steps.
class ByRecord : public train::Observer {
 public:
  void run(const Executable& exe, Stream& s) override {
    const auto& program = exe.program();
    for (int i = 0; i < static_cast<int>(program.records.size()); ++i) {
      const auto start = std::chrono::steady_clock::now();
      exe.run(s, i, i + 1, {});
      const auto& r = program.records[static_cast<std::size_t>(i)];
      seconds_[program.scopes[r.scope] + " " + std::string(r.op) + " " + std::string(phase_name(r.phase))] += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
  }
  void print(int steps) const {
    std::vector<std::pair<double, std::string>> rows;
    for (const auto& [name, seconds] : seconds_) rows.emplace_back(seconds * 1e3 / steps, name);
    std::sort(rows.rbegin(), rows.rend());
    for (const auto& [ms, name] : rows) std::printf("%9.3f ms  %s\n", ms, name.c_str());
  }

 private:
  std::map<std::string, double> seconds_;
};

}  // namespace

int main(int argc, char** argv) {
  const bool records = argc > 1 && std::string_view(argv[1]) == "--records";
  if (records) ++argv, --argc;
  if (argc < 5) return std::fprintf(stderr, "usage: image_step [--records] simple_cnn|resnet18 BATCH SIZE f32|bf16 [DEVICE]\n"), 2;
  const Device device = argc > 5 ? device_from_name(argv[5]) : Device::cpu();
  const std::int64_t batch = std::atoi(argv[2]), size = std::atoi(argv[3]);
  Pool pool;
  auto model = models::ImageModel::create({.family = std::string_view(argv[1]) == "resnet18" ? models::ImageFamily::resnet18 : models::ImageFamily::simple_cnn, .size = size}, 1, true);
  train::StepOptions options{.batch = batch, .optimizer = Sgd::Args{.momentum = 0.9f}, .clip = 0};
  options.forward.compute = std::string_view(argv[4]) == "bf16" ? DType::bf16 : DType::f32;
  train::TrainStep trainer(model, pool, options, device);
  ByRecord by_record;

  lab::compare::HostEnvironment clock(pool);
  const Rng rng{7, 0};
  const auto inputs = trainer.inputs();
  std::vector<float> images(static_cast<std::size_t>(inputs[0].spec.size()));
  std::vector<std::int32_t> targets(static_cast<std::size_t>(batch));
  const View in[] = {View(images.data(), inputs[0].spec), View(targets.data(), inputs[1].spec)};
  for (std::size_t i = 0; i < images.size(); ++i) images[i] = 2 * rng.uniform(i) - 1;
  for (std::size_t i = 0; i < targets.size(); ++i) targets[i] = static_cast<std::int32_t>(rng.below(i, 10));
  std::string line;
  for (std::int64_t step = 0;; ++step) {
    const double start = clock.now();
    trainer.accumulate(in, step, 0);
    const double loss = trainer.update(1e-3, batch).loss;
    const double ms = (clock.now() - start) * 1e3;
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    if (records) {
      if (step == 0) trainer.watch(&by_record);
      if (step == 10) return by_record.print(10), 0;
      continue;
    }
    if (step == 0) std::cout << "ready\n";
    else std::cout << nlohmann::json({{"ms", ms}, {"loss", loss / static_cast<double>(batch)}, {"peak_bytes", usage.ru_maxrss * 1024}}).dump() << '\n';
    std::cout.flush();
    if (!std::getline(std::cin, line)) return 0;
  }
}
