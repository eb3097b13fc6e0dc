#pragma once
// Quantised matrices of other programs, as numbers. Each is several tensors of a folder; scales keep their type.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hpcdl/io/foreign/config.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/ops/quant_linear/quant_format.h"

namespace hpcdl::io {

/// The tensors of a matrix in a form that kernels multiply: views of the mapped file, but for a table that the file has in
/// parts.
struct PackedParts {
  QuantFormat format = QuantFormat::nf4;
  QuantParts<View> parts = {};
  std::vector<float> table = {};  // parts.table, if the format has one
};

struct PackedMatrix {
  std::int64_t rows = 0, columns = 0;  // of the parameter, as transformers has it
  DType dtype = DType::bf16;           // in which its program computes
  /// Writes the values of rows [begin, end). Safe from many threads.
  std::function<void(std::int64_t begin, std::int64_t end, float* out)> decode = {};
  std::optional<PackedParts> parts = {};  // none: no kernel multiplies this form
};

/// The matrix NAME, which ends in ".weight"; none if the folder holds no quantised matrix of that name. Throws Error that names
/// the tensor, what was expected and what was found.
std::optional<PackedMatrix> find_packed(const PackConfig& config, const TensorFolder& files, const std::string& name);

/// The name of the parameter that a tensor of the folder belongs to: "a.weight" for "a.qweight" and "a.weight.absmax". The
/// name itself if it belongs to none.
std::string parameter_of(const std::string& tensor);

// One for each method. `stem` is the name without "weight".
std::optional<PackedMatrix> find_bitsandbytes(const PackConfig& config, const TensorFolder& files,
                                              const std::string& stem);
std::optional<PackedMatrix> find_gptq(const PackConfig& config, const TensorFolder& files, const std::string& stem);
std::optional<PackedMatrix> find_awq(const PackConfig& config, const TensorFolder& files, const std::string& stem);
std::optional<PackedMatrix> find_block_fp8(const PackConfig& config, const TensorFolder& files,
                                           const std::string& stem);

}  // namespace hpcdl::io
