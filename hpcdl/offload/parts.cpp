#include "hpcdl/offload/parts.h"

#include <algorithm>
#include <string_view>

#include "hpcdl/parallel/unit.h"

namespace hpcdl::offload {

Parts::Parts(const Program& pass, std::size_t begin, std::size_t end) : begins_{begin}, end_(end) {
  std::string_view last;
  for (auto i = begin; i < end; ++i) {
    const auto part = parallel::unit_name(pass.scopes[pass.records[i].scope]);
    if (part.empty() || part == last) continue;
    if (!last.empty()) begins_.push_back(i);
    last = part;
  }
}

std::size_t Parts::of(std::size_t record) const {
  return static_cast<std::size_t>(std::ranges::upper_bound(begins_, record) - begins_.begin()) - 1;
}

}  // namespace hpcdl::offload
