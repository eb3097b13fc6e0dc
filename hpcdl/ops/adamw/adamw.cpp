#include "hpcdl/ops/adamw/adamw.h"

#include <cmath>

namespace hpcdl {

AdamW::Step AdamW::step(const Args& a, const StepParams& p) {
  const double t = static_cast<double>(p.step + 1);
  return {a, p.lr, p.grad_scale * p.clip_factor, static_cast<float>(1 - std::pow(a.beta1, t)),
          static_cast<float>(1 - std::pow(a.beta2, t))};
}

void AdamW::run(Stream& s, const Grad* operands, const void* args) {
  const auto& head = *static_cast<const detail::AdamWRecord*>(args);
  const auto* decays = reinterpret_cast<const std::uint8_t*>(&head + 1);
  on(
      s,
      [&](auto isa, Pool& pool) {
        if (!s.params().skip) cpu::adamw(isa, pool, operands, decays, head.count, step(head.args, s.params()));
      },
      [&](auto& q) { cuda::adamw(q, operands, decays, head.count, head.args); });
}

}  // namespace hpcdl
