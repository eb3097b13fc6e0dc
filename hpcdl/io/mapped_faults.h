#pragma once
// Reading a mapped file that another process has cut short raises SIGBUS (mmap(2)), which does not name the file. This
// is the list of mapped files, and a handler that prints which file it was.

#include <cstddef>

#include "hpcdl/io/file.h"

namespace hpcdl::io {

/// For MappedFile: [begin, begin + size) is the file `path`, open as `fd`, until forget_mapping(begin). Mappings beyond
/// the capacity of the list (1024) are not listed.
void list_mapping(const std::byte* begin, std::size_t size, int fd, const fs::path& path) noexcept;
void forget_mapping(const std::byte* begin) noexcept;

/// From now on a SIGBUS in a listed range calls `before_exit` (which must be safe in a signal handler), writes one line
/// that names the file to standard error and ends the process with `code`; any other SIGBUS has its
/// default effect. For the main function of a program; a library must not handle signals.
void explain_mapped_faults(int code, void (*before_exit)() noexcept);

}  // namespace hpcdl::io
