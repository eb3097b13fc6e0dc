#include "hpcdl/nn/context.h"

#include <fmt/format.h>

#include "hpcdl/core/describe.h"
#include "hpcdl/ops/dropout/dropout.h"

namespace hpcdl::nn {

std::string ForwardOptions::key() const {
  // Does not compile until a new option is named here as well.
  const auto& [dtype, again, drop, of_batch, keep, now, fused, trains, shared, smoothing, mixes, packs, paged, divides,
               places, capacity] = *this;
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", dtype_name(dtype), again, drop, of_batch, keep,
                     now, fused, trains, shared.has_value(), smoothing, mixes, packs, paged != nullptr,
                     divides != nullptr, capacity);
}

Var ForwardOptions::dropped(const Var& x, float p, int ranks, int rank) const {
  if (!context) return hpcdl::dropout(x, p, part * ranks + rank);
  return hpcdl::dropout(
      x, p, part * ranks + rank,
      {static_cast<int>(x[0] / ContextShare::kChunks), context->all_chunks(), context->chunk(0), context->chunk(1)});
}

}  // namespace hpcdl::nn
