#pragma once
// A program as bytes: the same bytes for the same program in every process, build and instruction set.

#include <cstdint>
#include <string>
#include <string_view>

#include "hpcdl/program.h"

namespace hpcdl {

/// Little-endian, with the names and versions of ops, and a checksum at the end.
std::string to_bytes(const Program& program);
/// Throws Error, with a message that begins with `from`, if the bytes are damaged or contain ops that this process does
/// not know, or knows in another version. For any input, the returned program stays within its own tables and slots,
/// and its records are such as the recorder writes, with operands and arguments that their ops accept (check.h). The
/// caller is responsible for the data that they compute with.
Program program_of(std::string_view bytes, std::string_view from);
/// The digest of everything except costs: programs that compute the same in the same way have the same digest.
std::uint64_t digest(const Program& program);

}  // namespace hpcdl
