#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/io/model_config.h"
#include "hpcdl/models/compute_type.h"
#include "hpcdl/models/decoder_spec.h"
#include "hpcdl/models/weight_files.h"
#include "hpcdl/nn/param.h"
#include "hpcdl/state/table.h"

namespace hpcdl::models {

/// Finds parameters in the files of a model. Files of a decoder without its head lack the prefix of its names:
/// both spellings are found.
class Binder {
 public:
  explicit Binder(const WeightFiles& files, const DecoderSpec& decoder = {}, std::optional<io::QuantConfig> quant = {})
      : files_(files), decoder_(decoder), quant_(std::move(quant)) {}

  /// A view into the file, or memory that is added to `own`: of the type of `compute`, if it names one; of values that the
  /// file does not hold as they are; of F64, which kernels do not read. Throws Error if the tensor is missing or has
  /// another shape.
  Tensor view(const std::string& name, const Spec& expected, const ComputeType& compute,
              std::vector<Buffer>& own) const;
  /// Of a tensor in the file. Throws Error as view().
  DType dtype(const std::string& name, const Shape& expected) const { return find(name, expected).dtype(); }
  /// Copies all of a tensor, or a part of it, into memory of the model, converting the type. It releases the pages of
  /// mapped files that it has read. Of a form that has to be decoded, the whole tensor is in memory meanwhile.
  void copy(const std::string& name, const Tensor& to, const Part& part = {}, Pool* pool = nullptr) const;
  /// What this rank has of a parameter: a view where it is one piece of the file, and else a copy in `own`, whose pages
  /// of the file are released again. For the rest like view().
  Tensor part(const nn::Param& p, const ComputeType& compute, std::vector<Buffer>& own) const;
  /// Adds the parts of a quantised matrix to the table, or what this rank has of it, copied into `own`; false when the
  /// folder holds none of that name.
  bool bind_quantized(const std::string& name, nn::Weight& weight, StateTable& table, std::vector<Buffer>& own) const;
  /// Adds a matrix that its file holds in a form that kernels multiply, as it is; false if the file holds none of that name,
  /// if it is (in, out), and for learned positions, which are not multiplied.
  bool bind_stored(const std::string& name, nn::Weight& weight, StateTable& table, std::vector<Buffer>& own) const;
  /// Throws Error if the files contain weights or biases in layers of the parameters `read` that are not among `read`:
  /// config.json then describes another model than the files contain.
  void require_whole_layers(const std::vector<std::string>& read) const;

 private:
  View find(const std::string& name, const Shape& expected) const;
  /// The tensor that is a part of a quantised matrix, checked against `spec`; an absent View for an absent spec.
  View find_part(const std::string& name, const Spec& spec) const;
  /// The pages of these bytes can be released: they have been copied.
  void drop(const std::byte* begin, std::int64_t bytes) const;
  void drop(const View& v) const { drop(v.ptr<std::byte>(), v.bytes()); }
  /// Whether a matrix of this name is (in, out) in the model.
  bool transposed(const std::string& name) const;
  /// The spelling of `name` that the files use; `name` itself if they contain neither.
  std::string spelled(const std::string& name) const;

  const WeightFiles& files_;
  DecoderSpec decoder_;
  std::optional<io::QuantConfig> quant_;
};

}  // namespace hpcdl::models
