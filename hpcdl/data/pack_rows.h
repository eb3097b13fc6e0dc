#pragma once
// Rows that hold several documents.

#include <cstdint>
#include <span>
#include <vector>

#include "hpcdl/data/shards.h"

namespace hpcdl::data {

/// Which items share a row of `room`: each goes into the first row, of those begun last, that has room for it. `lengths`:
/// 1 to `room` each. Rows and their items are in the order in which they began; a pure function of its arguments.
std::vector<std::vector<std::int64_t>> pack_rows(std::span<const std::int64_t> lengths, std::int64_t room);

/// Of tokens of rows of `length`, the position of each in its document, which begins with `separator` or with its row.
void document_positions(std::span<const TokenId> tokens, std::int64_t length, TokenId separator,
                        std::vector<std::int32_t>& positions);

}  // namespace hpcdl::data
