#pragma once
// Reads files of a tar archive, without unpacking it.

#include <filesystem>
#include <functional>
#include <map>
#include <string>

namespace hpcdl::data {

namespace fs = std::filesystem;

/// True for names that read_tar() opens: .tar, .tar.gz, .tar.zst.
bool is_tar_name(const fs::path& path);

/// The contents of the requested regular files, by name. The whole archive is read, so that its checksum is verified.
/// Throws Error if it is damaged or truncated.
std::map<std::string, std::string> read_tar(const fs::path& path,
                                            const std::function<bool(const std::string&)>& wanted);

}  // namespace hpcdl::data
