#pragma once
// Formats of quantised matrices. Each is a row at the end of a file in quant/ and a word in quant/codecs.h; layers, model
// files and the command line read the row.

#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "hpcdl/box.h"
#include "hpcdl/tensor.h"

namespace hpcdl {

class Pool;
class Var;
struct OwnedTensor;
enum class Activation : std::uint8_t;
template <class T> struct Matrix;

namespace nn {

/// What a matrix is quantised with. A codec ignores what it has no choice of.
struct CodecOptions {
  std::int64_t group = 64;  // inputs of a row that share a scale
  bool symmetric = true;    // scales alone, without offsets
  /// Chooses each group's scale (and offset) by its mean squared error, not by its range.
  bool search = true;
  bool nested = false;  // scales are quantised, too
  bool operator==(const CodecOptions&) const = default;
};

/// What quantisation changed in a matrix.
struct RoundingError {
  double squared = 0;  // sum of (w - w')^2
  double origin = 0;   // sum of w^2
  double largest = 0;  // max |w - w'|
  std::int64_t count = 0;
  double rms() const { return count > 0 ? std::sqrt(squared / static_cast<double>(count)) : 0; }
  /// sqrt(squared / origin); 0 for a matrix of zeros.
  double relative_rms() const { return origin > 0 ? std::sqrt(squared / origin) : 0; }
};

/// The rows and columns of a matrix (out, in) that a rank has: consecutive inputs, and of the outputs several intervals,
/// such as those that are queries, keys and values.
struct MatrixPart {
  std::vector<Interval> outputs;
  Interval inputs;
};

/// A matrix W is always (out, in), whatever the layout of the original. It consists of up to four tensors.
struct Codec {
  static constexpr std::size_t kMostParts = 4;
  template <class T> using Parts = std::array<T, kMostParts>;
  /// The part of matrix NAME is NAME + `in_programs` in programs, and NAME + `in_files` in files.
  struct PartName {
    std::string_view in_programs, in_files;
  };

  std::string_view name;                      // config.json calls it "hpcdl_" + name
  int bits = 0;                               // of a weight, in the first part
  std::span<const std::int64_t> groups = {};  // the sizes of groups among which one can choose
  std::int64_t block = 1;                     // without a choice: inputs of a row are a multiple of it
  Parts<PartName> names = {};
  bool gradients = false;  // the product has that of x, so that adapters beside the matrix can be trained
  DType activations_on_gpu = DType::bf16;  // with which generation on a GPU is fastest
  /// Absent specs for parts that a matrix (out, in) does not have.
  Parts<Spec> (*specs)(std::int64_t out, std::int64_t in, const CodecOptions& options) = nullptr;
  /// activation(x W^T + bias) + residual, of type `out`, or that of x if `out` is none. bias and residual may be absent.
  Var (*multiply)(const Parts<Var>& w, const Var& x, const Var& bias, const Var& residual, Activation activation,
                  DType out) = nullptr;
  /// A part of the matrix as a matrix of its own. Throws Error that names `name` if its inputs are not whole groups.
  /// Null: matrices of this codec cannot be divided.
  Parts<OwnedTensor> (*take)(const Parts<View>& w, const MatrixPart& part, std::string_view name) = nullptr;
  /// W[ids], plus rows of `positions` where that is present, as of embedding(), of type `out`.
  Var (*rows)(const Parts<Var>& w, const Var& ids, const Var& positions, const Var& places, DType out) = nullptr;
  /// W and bias for ops that hold several layers; null if these do not know the codec.
  Matrix<Var> (*matrix)(const Parts<Var>& w, const Var& bias) = nullptr;
  /// Quantises w (out, in), or (in, out) when `transposed`: f32, bf16 or f16, dense rows. Throws Error that names `name`
  /// and the position when a weight is NaN or infinite.
  Parts<OwnedTensor> (*quantize)(Pool& pool, const View& w, const CodecOptions& options, bool transposed,
                                 RoundingError& error, std::string_view name) = nullptr;
};

}  // namespace nn
}  // namespace hpcdl
