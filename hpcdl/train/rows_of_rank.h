#pragma once
// The tokens that a rank has of rows that several ranks share (nn/context_share.h).

#include <cstdint>
#include <span>
#include <vector>

#include "hpcdl/nn/context_share.h"
#include "hpcdl/parallel/mesh.h"
#include "hpcdl/train/data_source.h"

namespace hpcdl::train {

class RowsOfRank {
 public:
  /// `mode`: how attention goes across ranks, on which the chunks of a rank depend.
  RowsOfRank(const parallel::Mesh& mesh, nn::ContextShare::Mode mode) : mesh_(mesh), mode_(mode) {}

  /// A batch of this rank from the whole rows, (batch, length) each; `valid`: targets in them that are not -1. The tensors
  /// stay valid until the next call; if no other rank shares the rows, they are those given.
  Batch of(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, std::int64_t batch,
           std::int64_t length, std::int64_t valid, std::span<const std::int64_t> samples);

 private:
  const parallel::Mesh& mesh_;
  nn::ContextShare::Mode mode_;
  std::vector<std::int32_t> tokens_, targets_, positions_;
};

}  // namespace hpcdl::train
