#pragma once
// A model that makes vectors of texts: its weights, their memory, and its programs.

#include <filesystem>
#include <memory>

#include "hpcdl/instance.h"
#include "hpcdl/models/compute_type.h"
#include "hpcdl/models/encoder.h"
#include "hpcdl/models/encoder_config.h"

namespace hpcdl::models {

class TextEncoder {
 public:
  /// A Hugging Face folder, also one of sentence-transformers. Weights are views into the mapped files, except for those
  /// whose type is not `compute`. Throws Error for what is computed in another way.
  static TextEncoder open(const std::filesystem::path& folder, const ComputeType& compute = {});

  TextEncoder(TextEncoder&&) noexcept;
  TextEncoder& operator=(TextEncoder&&) noexcept;
  ~TextEncoder();

  const EncoderConfig& config() const;
  const EmbeddingConfig& embedding() const;
  /// The type of activations: that which was asked for; else f32 on a CPU, and on a GPU that of the matrices.
  DType compute_type() const;
  /// The last states of all tokens, (T, C) f32.
  Var states(Graph& g, const PackedTexts& texts) const;

  /// Before any program has been recorded.
  void to_device(const Stream& s);
  Device device() const;
  std::int64_t bytes() const;
  /// Of weights that were converted.
  std::int64_t converted_bytes() const;
  ProgramCache& programs() const;

 private:
  struct Impl;
  explicit TextEncoder(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hpcdl::models
