#pragma once
// Ops whose operands must lie on whole pages of an arena: those that move them to and from disks past the page cache.

#include <cstdint>

#include "hpcdl/op_info.h"
#include "hpcdl/program.h"

namespace hpcdl {

inline constexpr std::int64_t kPageBytes = 4096;

/// From now on slots of programs with records of this op begin and end with pages. Before main() begins; returns true.
bool know_whole_pages(OpName op);
/// Whether the program has such a record.
bool has_whole_pages(const Program& program);

}  // namespace hpcdl
