#pragma once

#include <filesystem>

#include "hpcdl/pool.h"

namespace hpcdl::cli {

/// The mean, over 64 rows of logits after random tokens, of the Kullback-Leibler divergence of the second model's next token
/// from the first one's, in nats. Both compute in f32; only one is in memory at a time.
double divergence(const std::filesystem::path& from, const std::filesystem::path& to, Pool& pool);

}  // namespace hpcdl::cli
