#pragma once
// Tensors in files, read without copies: a View points into the mapping. Lengths and offsets of the format make views
// 8-byte aligned at best (files of this writer: 64 for the first tensor, the element size for all), so kernels must use
// unaligned loads.

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "hpcdl/io/mapped_file.h"
#include "hpcdl/io/safetensors_header.h"

namespace hpcdl::io {

/// One safetensors file. Views stay valid as long as this object (or the one it was moved to) lives.
class SafeTensors {
 public:
  /// Maps the file and checks its header; no tensor data is read. Throws Error for a bad file.
  static SafeTensors open(const fs::path& path);

  std::optional<View> find(const std::string& name) const;
  /// Throws Error that names the closest existing tensor.
  View at(const std::string& name) const;
  View view(const TensorInfo& info) const { return View(file_.data() + info.offset, info.spec); }
  /// In file order.
  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  const MappedFile& file() const { return file_; }

 private:
  MappedFile file_;
  SafeTensorsHeader header_;
  std::unordered_map<std::string, std::size_t> index_;
};

/// All tensors of a model folder: model.safetensors, or the shards of model.safetensors.index.json.
class TensorFolder {
 public:
  /// `path` is a folder or one .safetensors file. Throws Error when a shard or a promised tensor is missing.
  static TensorFolder open(const fs::path& path);

  std::optional<View> find(const std::string& name) const;
  View at(const std::string& name) const;
  bool contains(const std::string& name) const { return index_.contains(name); }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  /// The file that holds tensors()[i].
  const SafeTensors& shard_of(std::size_t i) const { return shards_[home_[i]]; }
  const std::vector<SafeTensors>& shards() const { return shards_; }
  const fs::path& path() const { return path_; }
  std::int64_t mapped_bytes() const;
  std::int64_t resident_bytes() const;

 private:
  void add_all(std::size_t shard);
  void open_shards(const fs::path& index);

  fs::path path_;
  std::vector<SafeTensors> shards_;
  std::vector<TensorInfo> tensors_;
  std::vector<std::size_t> home_;  // shard of each tensor
  std::unordered_map<std::string, std::size_t> index_;
};

}  // namespace hpcdl::io
