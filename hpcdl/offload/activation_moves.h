#pragma once
// Activations that wait for the backward pass elsewhere, as an edit of the pass: what forward has computed is copied
// away after its last use there, and comes back while the backward pass is still at an earlier part of the model. With
// recomputation these are the inputs of blocks. Source: Wu et al., "SSDTrain: an activation offloading framework to SSDs
// for faster large language model training", DAC 2025.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "hpcdl/offload/stash.h"

namespace hpcdl::offload {

struct ActivationOptions {
  double share = 1;        // of the bytes that wait, so that copies are spread evenly over forward
  std::size_t behind = 0;  // parts of the model for which a tensor's memory stays after its last use in forward
  std::size_t ahead = 1;   // parts of the model by which backward is earlier when they begin to come back
  std::int64_t smallest = 64 << 10;  // bytes of a tensor that moves
};

/// Of one pass.
struct MovedActivations {
  std::int64_t count = 0, bytes = 0;  // that leave memory
  std::int64_t kept = 0;              // bytes that wait in memory
};

/// A slot that leaves memory.
struct Moving {
  int slot = -1;
  std::size_t last = 0;   // the last record of forward that touches it
  std::size_t free = 0;   // before which its copy must be there
  std::size_t read = 0;   // before which it begins to come back
  std::size_t first = 0;  // the first record after forward that touches it
  std::int64_t byte = 0;  // of the stash
};
struct ActivationPlan {
  std::vector<Moving> moves;  // in the order of `last`
  std::int64_t stash_bytes = 0;
  MovedActivations moved;
};

/// What moves in a pass. Nothing in one without a backward part.
ActivationPlan plan_activations(const Program& pass, const ActivationOptions& options);

/// The passes of one step, which never run at the same time.
class ActivationMoves {
 public:
  ActivationMoves(std::unique_ptr<Stash> stash, const ActivationOptions& options)
      : stash_(std::move(stash)), options_(options) {}

  /// The pass with its moves, for which there is room from now on. This must outlive its runs.
  Recording moved(Recording pass);
  /// Of the pass with most.
  MovedActivations moved() const { return most_; }
  std::vector<const io::ScratchFile*> files() const { return stash_->files(); }

 private:
  std::unique_ptr<Stash> stash_;
  ActivationOptions options_;
  MovedActivations most_;
};

}  // namespace hpcdl::offload
