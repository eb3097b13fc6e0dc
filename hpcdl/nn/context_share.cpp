#include "hpcdl/nn/context_share.h"

#include "hpcdl/core/error.h"

namespace hpcdl::nn {

Shape ContextShare::tokens_of_rank(std::int64_t batch, std::int64_t length) const {
  const std::int64_t n = all_chunks();
  if (length % n != 0)
    fail_usage("context",
               "rows of {} tokens are not divisible into {} chunks, two for each of {} ranks: {} or {} would fit",
               length, n, size(), std::max(n, length / n * n), (length / n + 1) * n);
  return {kChunks * batch, length / n};
}

}  // namespace hpcdl::nn
