// Our side of bench/peers/image_step.py and bench/gpu/bars.py: training steps of an image classifier (forward,
// backward, SGD with momentum), the number on each line of stdin, and their mean time.
//   image_step simple_cnn|resnet18 BATCH SIZE f32|bf16|f16 [DEVICE]    with --records first: the time of each record,
//   of ten steps, and no steps

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "bench/taken_bytes.h"
#include "hpcdl/models/image_model.h"
#include "hpcdl/rng.h"
#include "hpcdl/train/train_step.h"
#include "tools/compare/environment.h"
#include "tools/profile/timer.h"

namespace {

using namespace hpcdl;

/// Time of each kind of record over all steps, measured as in `hpcdl profile`: on a GPU by CUPTI inside of the captured
/// programs.
class ByRecord : public train::Observer {
 public:
  explicit ByRecord(Device device) : timer_(lab::record_timer(device)) {}
  /// Before and after a step.
  void begin_step(std::int64_t) override { runs_.clear(), programs_.clear(), timer_->begin(); }
  void end_step(std::int64_t) override {
    lab::StepTrace trace;
    if (!timer_->finish(trace)) return;
    ++steps_;
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      const auto& program = *programs_[i];
      for (std::size_t r = 0; r < runs_[i].times.size(); ++r) {
        const auto& record = program.records[r];
        const auto& t = runs_[i].times[r];
        auto& row = rows_[program.scopes[record.scope] + " " + lab::record_name(record) + " " +
                          std::string(phase_name(record.phase))];
        row.ns += static_cast<double>(t.end - t.begin), row.cost += record.cost;
      }
    }
    for (const auto& span : trace.device) {
      auto& kernel = by_kernel_[std::string(span.name)];
      kernel.ns += static_cast<double>(span.end - span.begin), ++kernel.count;
      busy_ += static_cast<double>(span.end - span.begin), ++kernels_;
    }
    if (!trace.device.empty()) whole_ += static_cast<double>(trace.device.back().end - trace.device.front().begin);
  }
  void run(const Instance& exe, Stream& s) override {
    programs_.push_back(&exe.program());
    timer_->run(exe, s, runs_.emplace_back());
  }
  void print() const {
    std::vector<std::pair<double, std::string>> sorted;
    double all = 0;
    for (const auto& [name, row] : rows_) {
      const double us = row.ns * 1e-3 / steps_;
      all += us;
      sorted.emplace_back(us, fmt::format("{:9.1f} us {:6.1f} TFLOP/s {:6.0f} GB/s  {}", us,
                                          row.cost.operations / row.ns * 1e-3, row.cost.bytes() / row.ns, name));
    }
    std::sort(sorted.rbegin(), sorted.rend());
    fmt::print("{:9.1f} us of {} steps, by record\n", all, steps_);
    if (kernels_)
      fmt::print("{:9.1f} us from the first kernel of a step to the last, {:.1f} us in {} kernels and copies\n",
                 whole_ * 1e-3 / steps_, busy_ * 1e-3 / steps_, kernels_ / steps_);
    for (const auto& [us, line] : sorted) fmt::print("{}\n", line);
    std::vector<std::pair<double, std::string>> kernels;
    for (const auto& [name, k] : by_kernel_)
      kernels.emplace_back(k.ns,
                           fmt::format("{:9.1f} us in {:3} {:.100}", k.ns * 1e-3 / steps_, k.count / steps_, name));
    std::sort(kernels.rbegin(), kernels.rend());
    for (const auto& [ns, line] : kernels) fmt::print("{}\n", line);
    if (!timer_->how().empty()) fmt::print("{}\n", timer_->how());
  }

 private:
  struct Row {
    double ns = 0;
    Cost cost;
    int count = 0;
  };
  std::unique_ptr<lab::RecordTimer> timer_;
  std::deque<lab::ProgramRun> runs_;
  std::vector<const Program*> programs_;
  std::map<std::string, Row> rows_, by_kernel_;
  double busy_ = 0, whole_ = 0;
  int steps_ = 0, kernels_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const bool records = argc > 1 && std::string_view(argv[1]) == "--records";
  if (records) ++argv, --argc;
  if (argc < 5)
    return std::fprintf(stderr, "usage: image_step [--records] simple_cnn|resnet18 BATCH SIZE f32|bf16|f16 [DEVICE]\n"),
           2;
  const Device device = argc > 5 ? device_from_name(argv[5]) : Device::cpu();
  const std::int64_t batch = std::atoi(argv[2]), size = std::atoi(argv[3]);
  Pool pool;
  auto model =
      models::ImageModel::create({.family = std::string_view(argv[1]) == "resnet18" ? models::ImageFamily::resnet18
                                                                                    : models::ImageFamily::simple_cnn,
                                  .size = size},
                                 1, true);
  train::StepOptions options{.batch = batch, .optimizer = Sgd::Args{.momentum = 0.9f}, .clip = 0};
  const std::string_view dtype = argv[4];
  options.forward.compute = dtype == "bf16" ? DType::bf16 : dtype == "f16" ? DType::f16 : DType::f32;
  if (options.forward.compute == DType::f16) options.scaler.emplace();
  const std::int64_t before = device.is_cuda() ? bench::taken_bytes(device) : 0;
  train::TrainStep trainer(model, pool, options, device);

  lab::compare::HostEnvironment clock(pool);
  const Rng rng{7, 0};
  const auto inputs = trainer.inputs();
  std::vector<float> images(static_cast<std::size_t>(inputs[0].spec.size()));
  std::vector<std::int32_t> targets(static_cast<std::size_t>(batch));
  for (std::size_t i = 0; i < images.size(); ++i) images[i] = 2 * rng.uniform(i) - 1;
  for (std::size_t i = 0; i < targets.size(); ++i) targets[i] = static_cast<std::int32_t>(rng.below(i, 10));
  // The images lie on the GPU, as in PyTorch; and the result of a step is read while the next one runs, as in the
  // trainer.
  const Tensor on_host[] = {Tensor(images.data(), inputs[0].spec), Tensor(targets.data(), inputs[1].spec)};
  std::vector<OwnedTensor> there;
  std::vector<View> in;
  for (const auto& t : on_host) {
    if (!device.is_cuda()) in.emplace_back(t);
    else copy(trainer.stream(), there.emplace_back(t.spec(), device).tensor, t), in.emplace_back(there.back().tensor);
  }
  std::string line;
  std::int64_t step = 0;
  const auto steps = [&](int count) {
    for (int i = 0; i < count; ++i) {
      trainer.accumulate(in, step++, 0);
      if (i > 0) trainer.result();
      trainer.queue_update(1e-3, batch);
    }
    return trainer.result().loss / static_cast<double>(batch);
  };
  steps(3);  // plans, captures, replays
  if (records) {
    ByRecord by_record(device);
    trainer.watch(&by_record);
    for (int i = 0; i < 10; ++i) by_record.begin_step(i), steps(1), by_record.end_step(i);
    trainer.watch(nullptr);
    return by_record.print(), 0;
  }
  // Memory of a GPU is planned and allocated once, and measured before others begin to allocate theirs.
  const std::int64_t on_gpu = device.is_cuda() ? bench::taken_bytes(device) - before : 0;
  std::cout << "ready" << std::endl;
  while (std::getline(std::cin, line)) {
    const int count = std::max(1, std::atoi(line.c_str()));
    const double start = clock.now();
    const double loss = steps(count);
    const double ms = (clock.now() - start) * 1e3 / count;
    const std::int64_t peak = device.is_cuda() ? on_gpu : bench::taken_bytes(device);
    std::cout << nlohmann::json({{"ms", ms}, {"loss", loss}, {"peak_bytes", peak}}).dump() << std::endl;
  }
  return 0;
}
