#pragma once

#include <optional>
#include <string_view>

#include "hpcdl/io/foreign/config.h"
#include "hpcdl/models/weight_files.h"

namespace hpcdl::models {

/// How the matrices of a model folder are quantised by another program; none if they are not.
std::optional<io::PackConfig> pack_config_of(const io::fs::path& folder);

/// Throws Error for a GGUF file and for a folder that another program has quantised; `area` is that of the error.
void require_plain(const io::fs::path& model, std::string_view area);

/// A folder whose matrices are quantised by bitsandbytes, GPTQ, AWQ or in blocks of F8: read() decodes them, and those of
/// bitsandbytes in NF4, FP4 and 8 bits can be multiplied as they are. The other tensors are views.
class PackedWeights final : public WeightFiles {
 public:
  PackedWeights(const io::fs::path& path, const io::PackConfig& config)
      : folder_(io::TensorFolder::open(path)), config_(config) {}

  const io::fs::path& path() const override { return folder_.path(); }
  std::vector<std::string> names() const override;
  bool contains(const std::string& name) const override;
  View at(const std::string& name) const override;
  void read(const std::string& name, const Tensor& to, Pool* pool) const override;
  std::optional<StoredMatrix> stored_matrix(const std::string& name) const override;
  std::vector<const io::MappedFile*> files() const override;

 private:
  io::TensorFolder folder_;
  io::PackConfig config_;
};

}  // namespace hpcdl::models
