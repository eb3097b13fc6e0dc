#pragma once
// Programs in files: hpcdl/program/bytes.h describes their contents and what is refused.

#include "hpcdl/io/atomic_file.h"
#include "hpcdl/program/bytes.h"

namespace hpcdl::io {

inline void to_file(const Program& program, const fs::path& path) { write_file_atomic(path, to_bytes(program)); }
inline Program from_file(const fs::path& path) { return program_of(read_file(path), path.string()); }

}  // namespace hpcdl::io
