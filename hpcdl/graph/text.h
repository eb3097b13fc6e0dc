#pragma once

#include <string>

#include "hpcdl/instance.h"

namespace hpcdl {

/// The program as a table: every record with its scope, operand shapes, flops and bytes, then totals and the plan's
/// peak.
std::string program_text(const Program& program, const Plan& plan);

}  // namespace hpcdl
