#pragma once
// Models as GGUF files that llama.cpp opens.

#include "hpcdl/io/gguf/types.h"
#include "hpcdl/io/model_config.h"
#include "hpcdl/models/weight_files.h"
#include "hpcdl/pool.h"

namespace hpcdl::models {

struct GgufExport {
  std::int64_t tensors = 0, bytes = 0;
  std::int64_t in_other_types = 0;  // matrices whose rows are no whole blocks of the type
};

/// Writes the weights of a model, with matrices in `type`, or in Q8_0 or F16 where their rows do not divide into its blocks;
/// vectors and routers stay F32. `model` is a folder or GGUF file whose tokenizer and chat template are added. Throws Error
/// for a model that llama.cpp would compute differently, and for values that are not finite.
GgufExport write_gguf(const io::fs::path& model, const io::ModelConfig& config, const io::fs::path& out,
                      io::GgufType type, Pool& pool);

}  // namespace hpcdl::models
