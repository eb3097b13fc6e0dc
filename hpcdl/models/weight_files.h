#pragma once
// Where the values of a model's parameters are stored, under the names of Hugging Face.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/io/mapped_file.h"
#include "hpcdl/io/model_config.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/models/decoder_spec.h"
#include "hpcdl/nn/codec.h"
#include "hpcdl/pool.h"

namespace hpcdl::models {

/// A quantised matrix as kernels multiply it.
struct StoredMatrix {
  const nn::Codec* codec = nullptr;
  bool transposed = false;              // its rows are the columns of the parameter
  nn::Codec::Parts<Tensor> parts = {};  // in mapped files, or in `own`
  std::vector<Buffer> own = {};
};

class WeightFiles {
 public:
  virtual ~WeightFiles() = default;

  /// Of a language model: a folder of safetensors, quantised by another program or not, or a GGUF file.
  static std::unique_ptr<WeightFiles> open(const io::fs::path& path, const io::ModelConfig& config,
                                           const DecoderSpec& decoder);

  virtual const io::fs::path& path() const = 0;
  virtual std::vector<std::string> names() const = 0;
  virtual bool contains(const std::string& name) const = 0;
  /// A view into a mapped file. If the file holds the values in another form, the view has a spec but no memory, and read()
  /// gives them. Throws Error that names the closest existing tensor.
  virtual View at(const std::string& name) const = 0;
  /// Writes the values of a tensor, rounded to the type of `to`, which has its shape. `pool` may be null.
  virtual void read(const std::string& name, const Tensor& to, Pool* pool) const = 0;
  /// A matrix that the file holds in a form that kernels multiply; none for all others.
  virtual std::optional<StoredMatrix> stored_matrix(const std::string&) const { return std::nullopt; }
  virtual std::vector<const io::MappedFile*> files() const = 0;
};

/// safetensors.
class FolderWeights final : public WeightFiles {
 public:
  /// A folder or one file; see TensorFolder.
  explicit FolderWeights(const io::fs::path& path) : folder_(io::TensorFolder::open(path)) {}

  const io::fs::path& path() const override { return folder_.path(); }
  std::vector<std::string> names() const override;
  bool contains(const std::string& name) const override { return folder_.contains(name); }
  View at(const std::string& name) const override { return folder_.at(name); }
  void read(const std::string& name, const Tensor& to, Pool* pool) const override;
  std::vector<const io::MappedFile*> files() const override;

 private:
  io::TensorFolder folder_;
};

}  // namespace hpcdl::models
