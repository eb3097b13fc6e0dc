#pragma once
// Activations that wait for the backward pass on a disk, as an edit of the pass: what forward has computed is written
// after its last use there, and comes back while the backward pass is still at an earlier part of the model. With
// recomputation these are the inputs of blocks. Source: Wu et al., "SSDTrain: an activation offloading framework to SSDs
// for faster large language model training", DAC 2025.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <vector>

#include "hpcdl/io/disk_moves.h"

namespace hpcdl::offload {

struct ActivationOptions {
  double share = 1;                  // of the bytes that wait: those move first that wait longest
  int ahead = 1;                     // parts of the model by which backward is earlier when they begin to come back
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
  std::size_t read = 0;   // before which it begins to come back
  std::size_t first = 0;  // the first record after forward that touches it
  std::int64_t byte = 0;  // of the file
};
struct ActivationPlan {
  std::vector<Moving> moves;
  std::int64_t file_bytes = 0;
  MovedActivations moved;
};

/// What moves in a pass. Nothing in one without a backward part.
ActivationPlan plan_activations(const Program& pass, const ActivationOptions& options);

/// The passes of one step, which never run at the same time.
class ActivationMoves {
 public:
  /// described: without files; passes can be recorded, but not run.
  ActivationMoves(std::filesystem::path folder, const ActivationOptions& options, bool described)
      : folder_(std::move(folder)), options_(options), described_(described) {}

  /// The pass with its moves, whose room on the disk is reserved now. This must outlive its runs.
  Recording moved(Recording pass);
  /// Of the pass with most.
  MovedActivations moved() const { return most_; }
  const std::vector<std::shared_ptr<io::ScratchFile>>& files() const { return files_; }

 private:
  std::filesystem::path folder_;
  ActivationOptions options_;
  bool described_;
  MovedActivations most_;
  std::vector<std::shared_ptr<io::ScratchFile>> files_;  // all but the last are too small for later passes
};

}  // namespace hpcdl::offload
