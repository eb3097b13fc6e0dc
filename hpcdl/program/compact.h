#pragma once

#include "hpcdl/program.h"

namespace hpcdl {

/// The same records over tables of slots and operands that hold only what they use: of a part of a larger program, which
/// then binds no more than it needs. Its edits can no longer be undone.
Program compact(const Program& program);

}  // namespace hpcdl
