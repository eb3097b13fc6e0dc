#pragma once
// How a codec takes what is known of the inputs of a matrix into account.

#include <memory>
#include <span>
#include <string_view>

#include "hpcdl/buffer.h"
#include "hpcdl/nn/codec.h"
#include "hpcdl/pool.h"

namespace hpcdl::quant {

/// Rounds numbers to the values that a matrix can have whose scales are known.
class Rounder {
 public:
  virtual ~Rounder() = default;
  /// Stores the code of the value nearest to v as that of weight [row, column], and returns the value. Threads may work
  /// on different rows.
  virtual float round(std::int64_t row, std::int64_t column, float v) = 0;
};

/// A matrix that is to be quantised.
struct MatrixSource {
  View w;  // (out, in), or (in, out) when `transposed`: f32, bf16 or f16, dense rows
  bool transposed = false;
  std::string_view name = "weight";  // for errors
  /// How much the squared error of a weight counts, by its input; empty: all count alike.
  std::span<const float> importance = {};
};

struct Compensation {
  using Parts = nn::Codec::Parts<OwnedTensor>;

  const nn::Codec* codec;
  /// As Codec::quantize(). Codecs that search for scales take the importance into account.
  Parts (*quantize)(Pool& pool, const MatrixSource& source, const nn::CodecOptions& options, nn::RoundingError& error);
  /// For a matrix that quantize() has made with the same options: changes its codes and keeps its scales.
  std::unique_ptr<Rounder> (*rounder)(const Parts& parts, const nn::CodecOptions& options);
  /// If the codes stand for rotated rows, which the rounder then takes: rotates k numbers, and back. Null: they do not.
  void (*rotate)(double* row, std::int64_t k) = nullptr;
  void (*rotate_back)(double* row, std::int64_t k) = nullptr;
};

/// Null for a codec whose codes are chosen by its quantize() alone.
const Compensation* compensation_of(const nn::Codec& codec);

}  // namespace hpcdl::quant
