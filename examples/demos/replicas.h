#pragma once
// Data parallelism in a single process, like PyTorch's nn.DataParallel: the first replica owns the weights. Each
// step copies them to all others, divides the batch, runs every replica on its own thread and device, copies
// all gradients back, sums them, and updates. For a comparison with one process per device.

#include <memory>
#include <vector>

#include "hpcdl/data/images/image_loader.h"
#include "hpcdl/models/image_model.h"
#include "hpcdl/train/train_step.h"

namespace hpcdl::demos {

struct ReplicaSeconds {
  double replicate = 0, compute = 0, gather = 0, update = 0;  // per step
  double step() const { return replicate + compute + gather + update; }
};

class Replicas {
 public:
  /// One replica on each device. options.batch: samples of each. On CPUs each replica has one thread.
  Replicas(const models::ImageConfig& config, const train::StepOptions& options, const std::vector<Device>& devices,
           std::uint64_t seed);
  /// batches: one for each replica. Returns the times of the parts; `loss`: the mean over all samples.
  ReplicaSeconds step(const std::vector<data::ImageBatch>& batches, double lr, double& loss);

 private:
  struct Replica {
    Replica(const models::ImageConfig& config, const train::StepOptions& options, Device device, std::uint64_t seed);
    Pool pool;
    models::ImageModel model;
    train::TrainStep step;
    Stream stream;
  };
  static void use(const Replica& r);
  void replicate();
  void gather();

  std::vector<std::unique_ptr<Replica>> replicas_;
  std::vector<OwnedTensor>
      landing_;  // on the first device: where gradients of another replica arrive, one for each parameter
  std::int64_t steps_ = 0;
};

}  // namespace hpcdl::demos
