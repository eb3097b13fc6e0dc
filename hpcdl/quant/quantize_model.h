#pragma once
// Writes a model folder with quantised matrices from one without. Streams tensors: memory is that of one matrix.

#include <functional>

#include "hpcdl/io/safetensors.h"
#include "hpcdl/quant/calibration.h"
#include "hpcdl/quant/codecs.h"
#include "hpcdl/quant/report.h"

namespace hpcdl::quant {

/// What happens to a tensor. `matrix` is stored (out, in); `conv1d` is stored (in, out), as in GPT-2, and is
/// transposed.
enum class Treatment : std::uint8_t { copy, matrix, conv1d, leave_out };

struct QuantizeModelOptions {
  const nn::Codec* codec = codecs().front();
  nn::CodecOptions options = {};
  /// What happens to a tensor of the source; must be set. models::quantize_folder() knows it for every family.
  std::function<Treatment(const std::string& name, const Spec& spec)> treatment = nullptr;
  /// The format of a matrix, if it is another one than `codec`, with default options; null, or returning null: it is not.
  std::function<const nn::Codec*(const std::string& name)> other_codec = nullptr;
  /// Matrices that stay as they are; null: none. Throws Error if it keeps no matrix.
  std::function<bool(const std::string& name)> keep = nullptr;
  /// Lets weights make up for the errors of others (compensate.h), as far as something is known of the inputs of their
  /// matrix and there is a compensation_of() the codec; null: every weight is rounded by itself.
  Calibration* calibration = nullptr;
  /// With a calibration: scales are those with which errors of large inputs are smallest.
  bool activation_scales = false;
  bool keep_odd = false;  // matrices whose inputs do not fit the codec stay unchanged, and are not an error
  /// Called after each tensor, and once before the first with an empty name. Bytes of the source.
  std::function<void(const std::string& name, std::int64_t done, std::int64_t total)> progress = nullptr;
};

/// Writes folder `to`: model.safetensors (or shards) with the parts of each quantised matrix and all other tensors
/// unchanged; config.json with quantization_config; the tokenizer's files. `to` appears whole or not at all; an older model there is replaced.
/// Throws Error for NaN or infinite weights and for a group that does not divide, naming the tensor, and if keep_odd
/// leaves nothing to quantise; in all cases nothing is written.
ModelReport quantize_model(Pool& pool, const io::fs::path& from, const io::fs::path& to,
                           const QuantizeModelOptions& options);

}  // namespace hpcdl::quant
