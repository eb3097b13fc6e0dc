#include "hpcdl/nn/context.h"

#include <fmt/format.h>

#include "hpcdl/core/describe.h"

namespace hpcdl::nn {

std::string ForwardOptions::key() const {
  // Does not compile until a new option is named here as well.
  const auto& [dtype, again, drop, of_batch, keep, now, fused, trains, shared, smoothing, mixes, paged] = *this;
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {} {}", dtype_name(dtype), again, drop, of_batch, keep, now, fused,
                     trains, shared.has_value(), smoothing, mixes, paged != nullptr);
}

}  // namespace hpcdl::nn
