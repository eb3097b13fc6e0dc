#include "hpcdl/ops/sgd/sgd.h"

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

}  // namespace hpcdl
