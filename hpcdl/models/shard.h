#pragma once
// Which place each parameter of a family has where ranks share the layers (nn/sharing.h), as a table.

#include <cstdint>

#include "hpcdl/models/gpt.h"
#include "hpcdl/models/llama.h"

namespace hpcdl::models {

/// Throws UsageError where ranks would have to share a head. kv_heads 0: as many as heads.
void check_heads(std::int64_t heads, std::int64_t kv_heads, std::int64_t ranks);

/// Leaves this rank its part of a model that has names and no memory. Throws UsageError if the ranks do not divide the
/// heads or the MLP. `sharing` outlives the model.
void shard(Gpt& model, const nn::Sharing& sharing);
void shard(Llama& model, const nn::Sharing& sharing);

}  // namespace hpcdl::models
