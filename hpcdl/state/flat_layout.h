#pragma once
// Values in one flat block, and the elements of it that one rank updates where several ranks divide them among
// themselves.

#include <cstdint>
#include <vector>

#include "hpcdl/box.h"

namespace hpcdl {

struct FlatLayout {
  struct Place {
    std::int64_t offset = 0;  // in the block
    Interval mine;            // of the tensor's own elements in memory; may be empty
    std::int64_t share = 0;   // where these begin in a block of this rank's elements
    bool whole = true;        // false: between two steps, this rank has only these elements of the value
  };
  // All in elements.
  std::vector<Place> places;  // by parameter, in the order of the table
  std::int64_t elements = 0;
  std::int64_t divided = 0;         // at the beginning of the block: of values that no rank has whole
  std::int64_t copied = 0;          // at the beginning of the block: of everything that has a copy
  std::int64_t share_elements = 0;  // of a block of this rank's elements
  std::int64_t share_divided = 0;   // at its beginning: of those values
  bool whole_copies = true;         // false: copies are treated like values that are not whole

  /// Elements of a block of what this rank keeps of everything that has a copy.
  std::int64_t share_copied() const { return copied == 0 ? 0 : copied / (elements / share_elements); }
};

}  // namespace hpcdl
