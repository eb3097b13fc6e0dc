#include "hpcdl/ops/layer_norm/norm.h"

#include "hpcdl/ops/require.h"

namespace hpcdl::detail {

void require_norm(std::string_view op, const Spec& x, const Spec& gamma, const Spec& beta, float eps) {
  require_float(op, x);
  require(x[-1] > 0, op, "rows must not be empty, got {}", to_string(x));
  require_float(op, gamma, "weight");
  require_shape(op, "weight", gamma, {x[-1]});
  if (beta) require_spec(op, "bias", beta, gamma);
  require(eps >= 0, op, "eps must not be negative, got {}", eps);
}

}  // namespace hpcdl::detail
