#pragma once
// The optimizers of a training step with one interface: their moments for every parameter, and the record that updates
// all of them.

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "hpcdl/core/pinned.h"
#include "hpcdl/graph.h"
#include "hpcdl/ops/adamw/adamw.h"
#include "hpcdl/ops/adamw8/adamw8.h"
#include "hpcdl/ops/sgd/sgd.h"
#include "hpcdl/optim/disk_update.h"
#include "hpcdl/optim/host_update.h"
#include "hpcdl/state/table.h"

namespace hpcdl {

/// AdamW8: AdamW with moments of 8 bits, on a CPU; small tensors have moments in f32 (state/moment_blocks.h).
using OptimizerArgs = std::variant<AdamW::Args, AdamW8::Args, Sgd::Args>;

/// Where the moments lie: with the model, or, AdamW's alone, on the host (host_update.h) or on a disk (disk_update.h).
struct OptimizerPlace {
  bool on_host = false;
  std::optional<std::filesystem::path> folder = {};  // of a disk: then a CPU updates all values, in host memory
  std::optional<int> interleave = 0;  // on the host: every so many-th group is updated on the device; unset: as its
                                      // rates suggest
  std::int64_t group = 0;             // elements that are updated together; 0: as suits the place
};

class Optimizer {
 public:
  /// Adds its moments to the table for its lifetime. The table must outlive it. `pool`: runs the host's part of copies.
  Optimizer(StateTable& table, const OptimizerArgs& args, const OptimizerPlace& place, Pool& pool);

  /// The gradients of all parameters as variables of a program, in the order of the table.
  std::vector<Var> gradients(Graph& g) const;
  /// Records the update of all parameters.
  void record(Graph& g) const;
  /// "NAME.m" and so on, one parameter after the other; with scales if they are coded (StateTable::add_moments).
  std::span<const StateEntry> moments() const { return moments_->entries; }
  /// Null unless the moments lie on the host.
  const HostUpdate* host() const { return host_ ? &*host_ : nullptr; }
  /// The file of moments on a disk; null if there is none.
  const io::ScratchFile* file() const { return moments_->file.get(); }

 private:
  void make_host_update(const OptimizerPlace& place, Pool& pool);
  std::vector<MovedTensor> moved_tensors() const;
  void record_adamw_of(Graph& g, const AdamW::Args& args) const;
  void record_sgd_of(Graph& g, const Sgd::Args& args) const;

  StateTable& table_;
  OptimizerArgs args_;
  std::shared_ptr<const StateGroup> moments_;
  PinnedRange pinned_;  // of the moments on the host
  std::optional<HostUpdate> host_;
  std::optional<DiskUpdate> disk_;
};

}  // namespace hpcdl
