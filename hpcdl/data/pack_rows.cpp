#include "hpcdl/data/pack_rows.h"

#include <algorithm>

#include "hpcdl/core/error.h"

namespace hpcdl::data {

std::vector<std::vector<std::int64_t>> pack_rows(std::span<const std::int64_t> lengths, std::int64_t room) {
  constexpr std::size_t kOpen = 64;  // more fill rows hardly better, and take longer
  struct Open {
    std::size_t row;
    std::int64_t left;
  };
  std::vector<std::vector<std::int64_t>> rows;
  std::vector<Open> open;
  for (std::int64_t i = 0; i < std::ssize(lengths); ++i) {
    const auto n = lengths[static_cast<std::size_t>(i)];
    require(n >= 1 && n <= room, "data", "an item of {} tokens does not fit into a row of {}", n, room);
    auto place = std::ranges::find_if(open, [&](const Open& o) { return o.left >= n; });
    if (place == open.end()) {
      if (open.size() == kOpen) open.erase(open.begin());
      rows.emplace_back();
      place = open.insert(open.end(), Open{.row = rows.size() - 1, .left = room});
    }
    rows[place->row].push_back(i);
    place->left -= n;
    if (place->left == 0) open.erase(place);
  }
  return rows;
}

void document_positions(std::span<const TokenId> tokens, std::int64_t length, TokenId separator,
                        std::vector<std::int32_t>& positions) {
  positions.assign(tokens.size(), 0);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (static_cast<std::int64_t>(i) % length != 0 && tokens[i] != separator) positions[i] = positions[i - 1] + 1;
}

}  // namespace hpcdl::data
