#pragma once
// Weights that lie on a disk, or on the host beside a GPU, as an edit of a pass that reads them: those of a part of the
// model come into the arena shortly before the pass needs that part, and their memory is free again after the last record
// that reads them.

#include <memory>
#include <string>
#include <vector>

#include "hpcdl/io/disk_moves.h"
#include "hpcdl/parallel/held.h"
#include "hpcdl/state/table.h"

namespace hpcdl::offload {

class ParameterMoves {
 public:
  /// Of the entries of the table that lie on a disk (StateTable::move_to_disk), and of the values and copies that programs
  /// reach through moves alone (StateTable::keep_on_host). ahead: parts of the model by which a pass is earlier when the
  /// weights of one begin to come.
  ParameterMoves(const StateTable& table, int ahead);

  /// The pass, which reads weights from where they lie. This must outlive its runs.
  Recording moved(Recording pass) const;

 private:
  struct Place {
    std::int64_t byte;  // of a file; -1: in host memory
    bool frozen;
  };
  void add(const StateEntry& e, bool frozen);
  void bring(Edit& edit, std::size_t before, const Operand& to, const Operand& from, const Place& place) const;

  std::vector<parallel::OwnedState> states_;
  std::vector<Place> places_;  // in the same order
  io::DiskPlace values_, frozen_;
  int ahead_;
};

}  // namespace hpcdl::offload
