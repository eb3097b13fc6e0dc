#pragma once

#include <span>
#include <string>

#include "hpcdl/instance.h"

namespace hpcdl {

/// The program as a table: every record with its scope, operand shapes, flops and bytes, then totals and the plan's
/// peak. `ways`: how a GPU computes each record, or nothing.
std::string program_text(const Program& program, const Plan& plan, std::span<const std::string> ways = {});

}  // namespace hpcdl
