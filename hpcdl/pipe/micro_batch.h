#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "hpcdl/autocast.h"
#include "hpcdl/graph.h"
#include "hpcdl/models/trainable.h"

namespace hpcdl::pipe {

struct MicroBatch {
  std::int64_t batch = 1, length = 1;  // samples, and the length of each if the model does not know it
  nn::ForwardOptions forward = {};
  std::optional<AutocastPolicy> autocast = {};
  Numerics numerics = {};
};

struct RecordedMicroBatch {
  Recording recording;
  std::vector<Var> inputs, outputs;  // outputs: the loss, and what else the model counts
};

/// Forward and backward of one micro-batch as stages need them: gradients of weights are records of their own, and no
/// forward computes any. They are written over or added to what is there. The model needs no memory.
RecordedMicroBatch record_micro_batch(const models::Trainable& model, const MicroBatch& options, Write gradients);

}  // namespace hpcdl::pipe
