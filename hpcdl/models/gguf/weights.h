#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hpcdl/io/gguf/file.h"
#include "hpcdl/models/gguf/names.h"
#include "hpcdl/models/weight_files.h"

namespace hpcdl::models {

/// The tensors of a GGUF file under the names and in the order of transformers. at() gives views of tensors in F32, F16 and
/// BF16 that are stored as the model needs them; the type of the others is that in the file, or BF16 if they are
/// quantised.
class GgufWeights final : public WeightFiles {
 public:
  /// `config` must outlive this.
  GgufWeights(const io::fs::path& path, const io::ModelConfig& config, const DecoderSpec& decoder);

  const io::fs::path& path() const override { return file_.path(); }
  std::vector<std::string> names() const override;
  bool contains(const std::string& name) const override;
  View at(const std::string& name) const override;
  void read(const std::string& name, const Tensor& to, Pool* pool) const override;
  /// Of Q8_0, Q4_0, Q4_K and Q6_K, but for experts.
  std::optional<StoredMatrix> stored_matrix(const std::string& name) const override;
  std::vector<const io::MappedFile*> files() const override { return file_.files(); }

 private:
  struct Matrix;
  Matrix matrix(const std::string& name) const;

  io::GgufFile file_;
  GgufNames names_;
};

}  // namespace hpcdl::models
