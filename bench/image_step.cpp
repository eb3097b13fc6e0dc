// Our side of bench/peers/image_step.py and bench/gpu/bars.py: training steps of an image classifier (forward, backward, SGD with momentum), as
// many as each line on stdin says, and their mean time.
//   image_step simple_cnn|resnet18 BATCH SIZE f32|bf16|f16 [DEVICE]    with --records first: seconds by op and phase of 10 steps, and no steps

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

#include "bench/taken_bytes.h"
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
  if (argc < 5) return std::fprintf(stderr, "usage: image_step [--records] simple_cnn|resnet18 BATCH SIZE f32|bf16|f16 [DEVICE]\n"), 2;
  const Device device = argc > 5 ? device_from_name(argv[5]) : Device::cpu();
  const std::int64_t batch = std::atoi(argv[2]), size = std::atoi(argv[3]);
  Pool pool;
  auto model = models::ImageModel::create({.family = std::string_view(argv[1]) == "resnet18" ? models::ImageFamily::resnet18 : models::ImageFamily::simple_cnn, .size = size}, 1, true);
  train::StepOptions options{.batch = batch, .optimizer = Sgd::Args{.momentum = 0.9f}, .clip = 0};
  const std::string_view dtype = argv[4];
  options.forward.compute = dtype == "bf16" ? DType::bf16 : dtype == "f16" ? DType::f16 : DType::f32;
  if (options.forward.compute == DType::f16) options.scaler.emplace();
  const std::int64_t before = device.is_cuda() ? bench::taken_bytes(device) : 0;
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
  std::int64_t step = 0, peak = 0;
  const auto one = [&] {
    trainer.accumulate(in, step++, 0);
    return trainer.update(1e-3, batch).loss / static_cast<double>(batch);
  };
  for (int i = 0; i < 3; ++i) one();  // plans, captures, replays
  if (records) {
    trainer.watch(&by_record);
    for (int i = 0; i < 10; ++i) one();
    by_record.print(10);
    return 0;
  }
  std::cout << "ready" << std::endl;
  while (std::getline(std::cin, line)) {
    const int count = std::max(1, std::atoi(line.c_str()));
    const double start = clock.now();
    double loss = 0;
    for (int i = 0; i < count; ++i) loss = one();
    const double ms = (clock.now() - start) * 1e3 / count;
    if (peak == 0 || !device.is_cuda()) peak = bench::taken_bytes(device) - before;  // a GPU's is taken once, and may be shared with others
    std::cout << nlohmann::json({{"ms", ms}, {"loss", loss}, {"peak_bytes", peak}}).dump() << std::endl;
  }
  return 0;
}
