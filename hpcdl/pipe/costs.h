#pragma once
// What a part of a model costs for one micro-batch: a layer, or a stage, which is several layers in a row.

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace hpcdl::pipe {

struct PartCost {
  std::string name = {};                                        // "layers.3"
  double forward = 1, input_gradient = 1, weight_gradient = 1;  // seconds
  std::int64_t state_bytes = 0;                                 // all that stays: values, gradients, moments
  std::int64_t value_bytes = 0;                                 // of it, the values
  std::int64_t frame_bytes = 0;                                 // what forward keeps for backward
  std::int64_t activation_bytes = 0;                            // sent to the next part
  std::int64_t gradient_bytes = 0;                              // sent to the part before
  std::int32_t forward_records = 0, input_records = 0, weight_records = 0;  // of a recorded program; 0: unknown

  double seconds() const { return forward + input_gradient + weight_gradient; }
  bool operator==(const PartCost&) const = default;
};

struct LinkRate {
  double latency = 0;  // seconds
  double bytes_per_second = std::numeric_limits<double>::infinity();
  double seconds(std::int64_t bytes) const { return latency + static_cast<double>(bytes) / bytes_per_second; }
  bool operator==(const LinkRate&) const = default;
};

/// What each rank's share of a vocabulary costs for one micro-batch, if the ranks divide one (vocabulary.h).
struct VocabularyCost {
  double lookup = 0, logits = 0.25, loss = 0.5, lookup_gradient = 0;  // seconds
  std::int64_t state_bytes = 0;                                       // all that stays
  std::int64_t rows_bytes = 0, head_bytes = 0, gradient_bytes = 0;    // of the memory that each of ShareSlots counts
  std::int64_t hidden_bytes = 0;                                      // sent: rows, the input of the head, gradients
  std::int64_t statistics_bytes = 0;                                  // sent: what a rank knows of its logits
  std::int32_t lookup_records = 0, logits_records = 0, loss_records = 0, gradient_records = 0;  // 0: unknown

  double seconds() const { return lookup + logits + loss + lookup_gradient; }
  bool operator==(const VocabularyCost&) const = default;
};

struct Costs {
  std::vector<PartCost> layers;
  std::optional<VocabularyCost> vocabulary = {};  // which is then in no layer
  LinkRate link = {};                             // between two ranks, in one direction
  LinkRate host = {};                             // between a rank and host memory, in one direction
  bool operator==(const Costs&) const = default;
};

/// One after another: bytes that are sent are those of the last and of the first layer.
PartCost sum(std::span<const PartCost> layers);

/// Stages of which a rank computes forward, and each half of backward, in one unit of time for all its chunks together.
std::vector<PartCost> equal_stages(int ranks, int chunks);

}  // namespace hpcdl::pipe
