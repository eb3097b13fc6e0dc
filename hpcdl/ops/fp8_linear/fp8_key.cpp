#include <fmt/format.h>

#include "hpcdl/core/ways.h"
#include "hpcdl/ops/fp8_linear/fp8_ways.h"

namespace hpcdl::cuda {

std::array<std::int64_t, 6> fields_of(const Fp8Product& p) {
  const int scales = p.blocks() ? 2 : p.a_scale.size() > 1 || p.b_scale.size() > 1 ? 1 : 0;
  const int epilogue = static_cast<int>(p.activation) | static_cast<bool>(p.bias) << 2 |
                       static_cast<bool>(p.residual) << 3 | p.wants_amax() << 4;
  return {bucket(p.m()),
          bucket(p.n()),
          bucket(p.k()),
          (p.b.dtype() == DType::f8_e5m2) << 16 | static_cast<int>(p.a.dtype()) << 8 | static_cast<int>(p.y.dtype()),
          scales,
          epilogue};
}

std::string words_of(const Fp8Product& p) {
  return fmt::format("{}x{}x{} {}{}{}{}{}{}{}", p.m(), p.n(), p.k(), dtype_name(p.a.dtype()),
                     p.b.dtype() == DType::f8_e5m2 ? " by F8_E5M2" : "",
                     p.blocks()                                     ? " blocks"
                     : p.a_scale.size() > 1 || p.b_scale.size() > 1 ? " rows"
                                                                    : "",
                     p.bias ? " +bias" : "", p.activation != Activation::none ? " +activation" : "",
                     p.residual ? " +residual" : "", p.wants_amax() ? " +amax" : "");
}

}  // namespace hpcdl::cuda
