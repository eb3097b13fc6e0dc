#include "examples/demos/replicas.h"

#include <chrono>
#include <thread>

#include "hpcdl/ops/add/add.h"

namespace hpcdl::demos {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point& t) {
  const auto now = Clock::now();
  const double s = std::chrono::duration<double>(now - t).count();
  t = now;
  return s;
}

}  // namespace

Replicas::Replica::Replica(const models::ImageConfig& config, const train::StepOptions& options, Device device,
                           std::uint64_t seed)
    : pool(1),
      model(models::ImageModel::create(config, seed, true)),
      step(model, pool, options, device),
      stream(device, pool) {}

Replicas::Replicas(const models::ImageConfig& config, const train::StepOptions& options,
                   const std::vector<Device>& devices, std::uint64_t seed) {
  for (const auto device : devices) replicas_.push_back(std::make_unique<Replica>(config, options, device, seed));
  use(*replicas_[0]);
  for (const auto& p : replicas_[0]->model.parameters()) landing_.emplace_back(p.memory.spec(), devices[0]);
}

/// Makes its GPU the current one of this thread permanently, like a new stream.
void Replicas::use(const Replica& r) {
  Pool none(1);
  Stream(r.stream.device(), none);
}

void Replicas::replicate() {
  const auto from = replicas_[0]->model.parameters();
  for (std::size_t r = 1; r < replicas_.size(); ++r) {
    const auto to = replicas_[r]->model.parameters();
    for (std::size_t i = 0; i < from.size(); ++i) copy(replicas_[r]->stream, to[i].memory, from[i].memory);
  }
  for (const auto& r : replicas_) r->stream.synchronize();
}

void Replicas::gather() {
  auto& first = *replicas_[0];
  const auto sum = first.model.parameters();
  for (std::size_t r = 1; r < replicas_.size(); ++r) {
    const auto from = replicas_[r]->model.parameters();
    for (std::size_t i = 0; i < sum.size(); ++i) {
      copy(first.stream, landing_[i].tensor, from[i].gradient->memory);
      const Tensor& total = sum[i].gradient->memory;
      Add::forward(first.stream, total, total, landing_[i].tensor, {});
    }
  }
  first.stream.synchronize();
}

ReplicaSeconds Replicas::step(const std::vector<data::ImageBatch>& batches, double lr, double& loss) {
  ReplicaSeconds t;
  auto clock = Clock::now();
  replicate();
  t.replicate = seconds_since(clock);
  std::vector<double> losses(replicas_.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < replicas_.size(); ++r)
    threads.emplace_back([&, r] {
      use(*replicas_[r]);
      auto& step = replicas_[r]->step;
      const auto inputs = step.inputs();
      const View batch[] = {View(batches[r].images.data(), inputs[0].spec),
                            View(batches[r].targets.data(), inputs[1].spec)};
      step.accumulate(batch, steps_, 0);
      losses[r] = step.loss();
    });
  for (auto& thread : threads) thread.join();
  t.compute = seconds_since(clock);
  gather();
  t.gather = seconds_since(clock);
  std::int64_t valid = 0;
  for (const auto& b : batches) valid += b.valid;
  replicas_[0]->step.update(lr, valid);
  t.update = seconds_since(clock);
  loss = 0;
  for (const double l : losses) loss += l / static_cast<double>(valid);
  ++steps_;
  return t;
}

}  // namespace hpcdl::demos
