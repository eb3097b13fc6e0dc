#pragma once
// The archive that torch.save() writes: a zip file whose files are not compressed.

#include <string>
#include <string_view>
#include <vector>

namespace hpcdl::io::dcp {

struct ZipFile {
  std::string_view name, bytes;  // in the archive
};

/// The files of a whole archive, in the order of its directory, also of the 64-bit form. Checksums are not compared.
/// Throws Error, which calls it `from`, for anything that is damaged, compressed, encrypted or on several disks.
std::vector<ZipFile> read_zip(std::string_view archive, const std::string& from);

}  // namespace hpcdl::io::dcp
