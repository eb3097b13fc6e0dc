#include "hpcdl/ops/adamw/adamw.h"

#include "hpcdl/program/check.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

AdamW::Step AdamW::step(const Args& a, const StepParams& p) {
  const auto correction = [t = p.step + 1](double beta) { return static_cast<float>(1 - power(beta, t)); };
  return {a, p.lr, p.grad_scale * p.clip_factor, correction(a.beta1), correction(a.beta2)};
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

void AdamW::check_record(const RawRecord& r) {
  const auto count = r.args<detail::AdamWRecord>().count;
  r.args<detail::AdamWRecord>(count);  // the decay flags follow
  r.require_count(count * kOperands);
  for (std::size_t i = 0; i < r.count(); i += kOperands)
    detail::require_adamw(r.contiguous(i), r.contiguous(i + 1), r.contiguous(i + 2), r.contiguous(i + 3),
                          r.contiguous(i + 4));
}

}  // namespace hpcdl
