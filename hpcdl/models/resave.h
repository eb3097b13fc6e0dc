#pragma once
// Models, written as folders that transformers loads: with another data type, other shards, or decoded.

#include <cstdint>
#include <filesystem>

#include "hpcdl/io/model_config.h"
#include "hpcdl/pool.h"

namespace hpcdl::models {

struct ResaveOptions {
  DType dtype = DType::none;  // of weights in F32, BF16 and F16; none: as they are, and as they are decoded
  std::int64_t shard_bytes = std::int64_t{5'000'000'000};
};

struct Resaved {
  std::int64_t tensors = 0, bytes = 0;
  DType dtype = DType::none;  // in config.json
};

/// Writes a model and its tokenizer into a folder. All tensors of a folder are copied; a GGUF file, and a folder that another
/// program has quantised, gives the parameters of the model. Throws Error for numbers that the type cannot represent.
Resaved resave(const std::filesystem::path& from, io::ModelConfig config, const std::filesystem::path& to,
               const ResaveOptions& options, Pool& pool);

}  // namespace hpcdl::models
