#pragma once
// GGUF files, mapped: a model in one file, or split into several of the names NAME-00001-of-00003.gguf.

#include <cstddef>
#include <string>
#include <unordered_map>
#include <vector>

#include "hpcdl/io/gguf/header.h"
#include "hpcdl/io/mapped_file.h"

namespace hpcdl::io {

/// Whether a path is that of a GGUF file: an existing file that begins with its magic number.
bool is_gguf(const fs::path& path);

class GgufFile {
 public:
  /// Maps the file, and the other files of a model that is split, and checks their headers; no data is read. Throws Error
  /// for a bad file, for a part that is not the first, and for parts that are missing or do not belong together.
  static GgufFile open(const fs::path& path);

  /// Of the first file.
  const GgufMetadata& metadata() const { return parts_.front().header.metadata; }
  const GgufTensor* find(const std::string& name) const;
  /// Throws Error that names the closest existing tensor.
  const GgufTensor& at(const std::string& name) const;
  /// Of all files, in their order.
  std::vector<const GgufTensor*> tensors() const;
  /// The blocks of a tensor of this file.
  const std::byte* data(const GgufTensor& tensor) const;
  std::vector<const MappedFile*> files() const;
  const fs::path& path() const { return path_; }

 private:
  struct Part {
    MappedFile file;
    GgufHeader header;
  };
  struct Place {
    std::size_t part, tensor;
  };
  void add(const fs::path& path);
  void add_other_parts();

  fs::path path_;
  std::vector<Part> parts_;
  std::unordered_map<std::string, Place> index_;
};

}  // namespace hpcdl::io
