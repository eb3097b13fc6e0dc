#include "hpcdl/ops/grad_norm/grad_norm.h"

#include <algorithm>
#include <cmath>

namespace hpcdl {

void GradNorm::finish(StepParams& p, double squares, const Args& a) {
  const auto norm = static_cast<float>(std::sqrt(squares) * std::fabs(static_cast<double>(p.grad_scale)));
  p.grad_norm = norm;
  p.clip_factor = a.max_norm > 0 ? std::min(1.0f, a.max_norm / (norm + 1e-6f)) : 1.0f;
  if (a.skip_nonfinite) p.skip = std::isfinite(norm) ? 0 : 1;
}

void GradNorm::run(Stream& s, const Grad* operands, const void* args) {
  const auto& r = *static_cast<const detail::GradNormRecord*>(args);
  on(
      s,
      [&](auto isa, Pool& pool) {
        finish(s.params(), cpu::sum_of_squares(isa, pool, operands[0].template ptr<double>(), operands + 1, r.count),
               r.args);
      },
      [&](auto& q) { cuda::grad_norm(q, operands[0], operands + 1, r.count, r.args); });
}

}  // namespace hpcdl
