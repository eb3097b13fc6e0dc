#pragma once
// The parts of the model through which a pass goes: times in which copies for another part are under way.

#include <cstddef>
#include <vector>

#include "hpcdl/program.h"

namespace hpcdl::offload {

/// Records [begin, end) of a pass, cut where it comes to another part of the model (parallel::unit_name).
class Parts {
 public:
  Parts(const Program& pass, std::size_t begin, std::size_t end);

  /// The number of the part in which a record is.
  std::size_t of(std::size_t record) const;
  std::size_t count() const { return begins_.size(); }
  /// The first record of a part; `end` for all numbers from count() on.
  std::size_t begin(std::size_t part) const { return part < begins_.size() ? begins_[part] : end_; }

 private:
  std::vector<std::size_t> begins_;
  std::size_t end_;
};

}  // namespace hpcdl::offload
