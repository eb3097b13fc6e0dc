#pragma once
// A program as bytes: the same for the same program in every process, of every build and instruction set.

#include <cstdint>
#include <string>
#include <string_view>

#include "hpcdl/program/program.h"

namespace hpcdl {

/// Little-endian, with the names of ops and what version of them was meant, and a checksum at the end.
std::string to_bytes(const Program& program);
/// Error, which begins with `from`, where the bytes are damaged, or hold ops that this process does not know or knows
/// in another version. What comes back stays within its own tables and slots, and its records are such as the
/// recorder writes, with operands and arguments that their ops take (check.h), whatever the bytes were. The data that
/// they compute with are the caller's.
Program program_of(std::string_view bytes, std::string_view from);
/// Of everything but the costs: programs that compute the same in the same way have the same one.
std::uint64_t digest(const Program& program);

}  // namespace hpcdl
