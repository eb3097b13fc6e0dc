#pragma once
// The result of quantising a model, layer by layer.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/nn/codec.h"
#include "hpcdl/tensor.h"

namespace hpcdl::quant {

struct LayerReport {
  std::string name;
  Shape shape;  // (out, in) for a quantised matrix, otherwise as stored
  bool quantized = false;
  const nn::Codec* codec = nullptr;  // of a quantised matrix
  bool compensated = false;          // quantised with a calibration
  bool odd = false;                  // a matrix that was not quantised, because the group does not divide its inputs
  double bits_per_weight = 0;
  double relative_rms = 0;  // |w - w'| / |w|
  double largest = 0;       // max |w - w'|
  /// The mean divergence (Kullback-Leibler, in nats) of the next token of the model in which only this matrix is
  /// quantised; negative: not measured.
  double divergence = -1;
  std::int64_t bytes = 0;
  double ratio_fp32() const { return 32 / bits_per_weight; }
};

struct ModelReport {
  const nn::Codec* codec = nullptr;  // never null
  nn::CodecOptions options;
  std::vector<LayerReport> layers = {};  // in the order in which they were written

  std::int64_t weights() const;     // of the quantised matrices
  std::int64_t parameters() const;  // of everything written
  std::int64_t bytes() const;
  /// For the quantised matrices, with all parts.
  double bits_per_weight() const;
  double ratio_fp32() const { return 32 / bits_per_weight(); }
  /// For the whole model, including unquantised tensors.
  double model_bits_per_parameter() const;
};

nlohmann::json to_json(const ModelReport& report);
/// A table for people: one line per quantised matrix and a sum.
std::string to_text(const ModelReport& report);

}  // namespace hpcdl::quant
