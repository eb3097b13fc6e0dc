#pragma once
// Writes safetensors files tensor by tensor, or piece by piece: at no time does it hold more than the one being written.

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/safetensors_header.h"
#include "hpcdl/tensor.h"

namespace hpcdl::io {

struct NamedSpec {
  std::string name;
  Spec spec;
};

/// Readers of several transformers versions refuse a file without this.
inline const std::map<std::string, std::string> kPtMetadata = {{"format", "pt"}};

/// One file: declare all tensors, write each once in any order, commit. Nothing appears before commit().
class SafeTensorsWriter {
 public:
  /// Tensors are ordered by descending element size, then as given, so that each is aligned to its element.
  SafeTensorsWriter(const fs::path& path, std::vector<NamedSpec> tensors,
                    const std::map<std::string, std::string>& metadata = kPtMetadata);

  /// `view` must have the declared shape and dtype; any strides. Returns the CRC-32C of the bytes written.
  std::uint32_t write(const std::string& name, View view);
  /// The next elements of a tensor, in row-major order: contiguous, of its type. Returns the CRC-32C of all so far.
  std::uint32_t append(const std::string& name, View piece);
  /// Throws Error when a tensor was never written, or not to its end.
  void commit();

 private:
  struct Slot {
    TensorInfo info;
    std::int64_t written = 0;  // bytes
    bool begun = false;
    std::uint32_t crc = 0;
  };
  Slot& slot_of(const std::string& name);
  std::uint32_t append(Slot& slot, View piece);
  fs::path path_;
  AtomicFile file_;
  std::vector<Slot> slots_;
  std::unordered_map<std::string, std::size_t> index_;
};

/// A model folder: model.safetensors when everything fits one file of `max_shard_bytes`, else numbered shards and their
/// index. On commit the files of the other layout are removed, so that a reader finds only one model.
class TensorFolderWriter {
 public:
  TensorFolderWriter(const fs::path& folder, const std::vector<NamedSpec>& tensors,
                     std::int64_t max_shard_bytes = std::int64_t{5'000'000'000});
  std::uint32_t write(const std::string& name, View view);
  std::uint32_t append(const std::string& name, View piece);
  void commit();

 private:
  SafeTensorsWriter& shard_of(const std::string& name);

  fs::path folder_;
  std::int64_t total_bytes_ = 0;
  std::vector<std::unique_ptr<SafeTensorsWriter>> shards_;
  std::vector<std::string> files_;
  std::map<std::string, std::size_t> home_;
};

}  // namespace hpcdl::io
