#include "hpcdl/ops/sgd/sgd.h"

#include "hpcdl/program/check.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

void Sgd::run(Stream& s, const Grad* operands, const void* args) {
  const auto& head = *static_cast<const detail::SgdRecord*>(args);
  const auto* decays = reinterpret_cast<const std::uint8_t*>(&head + 1);
  on(
      s,
      [&](auto isa, Pool& pool) {
        if (!s.params().skip) cpu::sgd(isa, pool, operands, decays, head.count, step(head.args, s.params()));
      },
      [&](auto& q) { cuda::sgd(q, operands, decays, head.count, head.args); });
}

void Sgd::check_record(const RawRecord& r) {
  const auto& head = r.args<detail::SgdRecord>();
  r.args<detail::SgdRecord>(head.count);  // the decay flags follow
  r.require_count(head.count * kOperands);
  require(valid_args(head.args), name, "nesterov is neither true nor false");
  detail::require_sgd(head.args);
  for (std::size_t i = 0; i < r.count(); i += kOperands)
    detail::require_sgd(r.contiguous(i), r.contiguous(i + 1), r.contiguous(i + 2), r.contiguous(i + 3), head.args);
}

}  // namespace hpcdl
