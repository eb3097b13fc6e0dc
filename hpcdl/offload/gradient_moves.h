#pragma once
// Gradients that lie in host memory beside a GPU, as an edit of a pass: a gradient is in the arena while backward adds
// to it, and is copied to the host while backward goes on. The sums for the norm of all gradients are made before, so
// nothing needs to come back for it. Source: Ren et al., "ZeRO-Offload: democratizing billion-scale model training",
// ATC 2021.

#include <cstdint>
#include <string>
#include <vector>

#include "hpcdl/box.h"
#include "hpcdl/buffer.h"
#include "hpcdl/graph.h"
#include "hpcdl/ops/grad_norm/grad_norm.h"
#include "hpcdl/state/table.h"

namespace hpcdl::offload {

class GradientMoves {
 public:
  /// Of the gradients of the table that lie on the host (StateTable::keep_on_host). Without memory if the table is
  /// described.
  GradientMoves(const StateTable& table, Device device);

  /// The pass, which leaves its gradients on the host, or adds to those that are there. This must outlive its runs.
  Recording moved(Recording pass) const;
  /// Records the norm of all gradients of the table after passes with these moves: the bits of record_grad_norm
  /// (ops/grad_norm).
  void record_norm(Graph& g, const GradNorm::Args& args) const;

 private:
  struct Entry {
    const StateEntry* gradient;
    Interval blocks;  // of the sums
  };
  Tensor sums() const;

  std::vector<Entry> entries_;  // of all gradients, in the order of the table
  std::int64_t blocks_ = 0;
  Device device_;
  Buffer sums_;  // of squares, by block
};

}  // namespace hpcdl::offload
