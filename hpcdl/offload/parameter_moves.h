#pragma once
// Weights that lie on a disk, as an edit of a pass that reads them: those of a part of the model come into the arena
// shortly before the pass needs that part, and their memory is free again after the last record that reads them.

#include <memory>
#include <string>
#include <vector>

#include "hpcdl/io/disk_moves.h"
#include "hpcdl/parallel/held.h"
#include "hpcdl/state/table.h"

namespace hpcdl::offload {

class ParameterMoves {
 public:
  /// Of the entries of the table that lie on a disk (StateTable::move_to_disk). ahead: parts of the model by which a pass
  /// is earlier when the weights of one begin to come.
  ParameterMoves(const StateTable& table, int ahead);

  /// The pass, which reads weights from their files. This must outlive its runs.
  Recording moved(Recording pass) const;

 private:
  struct OnDisk {
    std::int64_t byte;
    bool frozen;
  };
  std::vector<parallel::OwnedState> states_;
  std::vector<OnDisk> places_;  // in the same order
  io::DiskPlace values_, frozen_;
  int ahead_;
};

}  // namespace hpcdl::offload
