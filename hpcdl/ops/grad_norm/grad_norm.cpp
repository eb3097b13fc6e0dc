#include "hpcdl/ops/grad_norm/grad_norm.h"

#include <algorithm>
#include <cmath>

#include "hpcdl/program/check.h"
#include "hpcdl/program/on.h"

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

void GradNorm::check_record(const RawRecord& r) {
  const auto& head = r.args<detail::GradNormRecord>();
  require(valid_args(head.args) && head.count >= 0 && head.count < 1 << 30, name, "its arguments are none");
  r.require_count(1 + head.count);
  std::int64_t blocks = 0;
  for (std::size_t i = 1; i < r.count(); ++i)
    blocks += tensor_blocks(require_float(name, r.contiguous(i), "gradient").shape.size());
  require_spec(name, "block sums", r.contiguous(0), {{blocks}, DType::f64});
}

}  // namespace hpcdl
