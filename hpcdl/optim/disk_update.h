#pragma once
// AdamW on a CPU of values whose moments lie on a disk, where values may lie, too. Elements are updated in groups: while one is
// updated, the next ones are read and the last one is written. The bits are those of one record. Source: Rajbhandari et
// al., "ZeRO-Infinity: breaking the GPU memory wall for extreme scale deep learning", SC 2021.

#include <cstdint>
#include <memory>
#include <span>

#include "hpcdl/io/disk_moves.h"
#include "hpcdl/ops/adamw/adamw.h"
#include "hpcdl/optim/update_group.h"

namespace hpcdl {

class DiskUpdate {
 public:
  /// Elements of a group: 8 MiB of moments. About three groups are in memory at a time.
  static constexpr std::int64_t kGroup = std::int64_t{1} << 20;

  /// Files of moments (StateTable::add_moments) and of values (StateTable::move_to_disk); null: the update can be
  /// recorded, but not run. group: a multiple of the elements of a page.
  DiskUpdate(std::shared_ptr<io::ScratchFile> moments, std::shared_ptr<io::ScratchFile> values,
             std::int64_t group = kGroup);

  /// Records the update of all tensors with moments in the file, in their order. The gradient norm has been recorded
  /// before.
  void record(Graph& g, std::span<const MovedTensor> tensors, const AdamW::Args& args) const;

 private:
  class Recorder;

  io::DiskPlace moments_, values_;
  std::int64_t group_;
};

}  // namespace hpcdl
