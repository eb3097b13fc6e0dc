#pragma once
// Text forms of core types, for messages and tables.

#include <string>

#include "hpcdl/tensor.h"

namespace hpcdl {

std::string to_string(const Shape& s);  // "(4, 64, 768)"
std::string to_string(const Spec& s);   // "BF16 (4, 64, 768)"; "absent" for an absent operand

}  // namespace hpcdl
