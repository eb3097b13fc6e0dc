#pragma once
// Writes a model folder whose layers are products of factors from one without. Streams tensors: memory is that of one
// matrix, its factors, and what finds them.

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "hpcdl/io/safetensors.h"
#include "hpcdl/nn/structure.h"
#include "hpcdl/quant/calibration.h"

namespace hpcdl::quant {

/// A matrix of a model's files that can be compressed.
struct CompressibleLayer {
  std::string name;         // of its layer, in config.json
  bool transposed = false;  // stored (in, out), as in GPT-2
};

struct CompressModelOptions {
  nn::Method method = nn::Method::svd;
  double ratio = 0.5;                       // numbers of the factors for each of the matrix: 0 < ratio < 1
  std::optional<std::int64_t> blocks = {};  // of monarch and blast; none: structure_for() chooses
  /// The layer of a tensor of the source, none for what is copied; must be set. models::compress_folder() knows it.
  std::function<std::optional<CompressibleLayer>(const std::string& name, const Spec& spec)> layer = nullptr;
  /// Whether a tensor is left out of the result: it is none of the model; null: none is.
  std::function<bool(const std::string& name)> leave_out = nullptr;
  /// Matrices that stay as they are; null: none. Throws Error if it keeps no matrix.
  std::function<bool(const std::string& name)> keep = nullptr;
  /// With svd: the error of a matrix is weighed with its inputs; null: all inputs count alike.
  Calibration* calibration = nullptr;
  /// Called after each tensor, and once before the first with an empty name. Bytes of the source.
  std::function<void(const std::string& name, std::int64_t done, std::int64_t total)> progress = nullptr;
};

struct CompressedLayer {
  std::string name;  // of the matrix in the source
  std::int64_t out = 0, in = 0;
  nn::Structure structure = {};
  bool weighed = false;  // with a calibration
  std::int64_t before = 0, bytes = 0;
  double relative_error = 0;  // |W - W'| / |W|, with the rounding of the factors
};

struct CompressReport {
  nn::Method method = nn::Method::svd;
  std::vector<CompressedLayer> layers = {};  // in the order in which they were written
  std::int64_t bytes_before = 0, bytes = 0;  // of all tensors

  /// Bytes of the compressed layers over what they were.
  double ratio() const;
  double relative_error() const;  // the root of the mean square over layers
};

nlohmann::json to_json(const CompressReport& report);
/// A table for people: one line per compressed matrix and a sum.
std::string to_text(const CompressReport& report);

/// Writes folder `to`: model.safetensors (or shards) with the factors of each compressed matrix, in its type, and all other
/// tensors unchanged; config.json with `hpcdl_compression`; the tokenizer's files. `to` appears whole or not at all; an
/// older model there is replaced. Throws Error if no matrix can be compressed, for NaN or infinite weights and for what
/// structure_for() refuses, naming the tensor; in all cases nothing is written.
CompressReport compress_model(Pool& pool, const io::fs::path& from, const io::fs::path& to,
                              const CompressModelOptions& options);

}  // namespace hpcdl::quant
