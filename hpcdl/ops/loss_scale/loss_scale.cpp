#include "hpcdl/ops/loss_scale/loss_scale.h"

#include "hpcdl/program/check.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

static_assert(sizeof(LossScale::Counts) == 3 * sizeof(std::int32_t));

void LossScale::run(Stream& s, const Grad* operands, const void*) {
  on(
      s, [&](auto, Pool&) { begin(s.params(), *operands[0].ptr<float>(), *operands[1].ptr<Counts>()); },
      [&](auto& q) { cuda::loss_scale_begin(q, operands[0], operands[1]); });
}

void LossScale::End::run(Stream& s, const Grad* operands, const void* args) {
  const auto& a = *static_cast<const Args*>(args);
  on(
      s, [&](auto, Pool&) { end(s.params(), *operands[0].ptr<float>(), *operands[1].ptr<Counts>(), a); },
      [&](auto& q) { cuda::loss_scale_end(q, operands[0], operands[1], a); });
}

void LossScale::check_record(const RawRecord& r) {
  check_args(r.args<Args>());
  r.require_count(2);
  require_spec(name, "scale", r.spec(0), kScale);
  require_spec(name, "counts", r.contiguous(1), kCounts);
}

}  // namespace hpcdl
