#pragma once
// How each layer of a family is split. This is applied from outside, to a model that has names and no memory; its
// forward code is not involved.

#include <cstdint>

#include "hpcdl/models/gpt.h"
#include "hpcdl/models/llama.h"
#include "hpcdl/parallel/tensor.h"

namespace hpcdl::models {

/// Throws UsageError where ranks would have to share a head. kv_heads 0: as many as heads.
void check_heads(std::int64_t heads, std::int64_t kv_heads, std::int64_t ranks);

/// Leaves this rank its part. Throws UsageError if the ranks do not divide the heads or the MLP.
void shard(Gpt& model, const parallel::TensorParallel& tp);
void shard(Llama& model, const parallel::TensorParallel& tp);

}  // namespace hpcdl::models
