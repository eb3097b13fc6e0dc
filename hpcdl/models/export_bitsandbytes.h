#pragma once
// Models as folders that transformers loads with bitsandbytes, in NF4.

#include <filesystem>

#include "hpcdl/io/model_config.h"
#include "hpcdl/models/resave.h"
#include "hpcdl/pool.h"

namespace hpcdl::models {

struct BitsAndBytesOptions {
  bool nested = false;  // scales are quantised, too
  std::int64_t shard_bytes = std::int64_t{5'000'000'000};
};

/// Writes a model folder and its tokenizer. The linear layers of the blocks become NF4, all other tensors stay as they are,
/// and memory is that of one matrix. Throws Error for a model that is quantised already, for families whose layers
/// bitsandbytes does not hold (matrices (in, out), experts), and for matrices whose inputs are no multiple of 64.
Resaved export_bitsandbytes(const std::filesystem::path& from, const io::ModelConfig& config,
                            const std::filesystem::path& to, const BitsAndBytesOptions& options, Pool& pool);

}  // namespace hpcdl::models
