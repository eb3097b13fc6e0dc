#include "hpcdl/ops/exchange/rotate.h"

#include "hpcdl/ops/require.h"
#include "hpcdl/program/check.h"

namespace hpcdl {

void Rotate::check_record(const RawRecord& r) {
  r.require_count(2);
  const auto& a = r.args<RecordArgs>();
  require(a.valid(), name, "expected a distance below {} ranks, found {}", a.axis.ranks, a.distance);
  require_spec(name, "what it sends", r.contiguous(1), r.contiguous(0));
  require(r.spec(0).dtype != DType::none, name, "its tensors are absent");
}

std::vector<Exchange> Rotate::exchanges(std::span<const Spec> operands, const void* args) {
  const auto& axis = static_cast<const RecordArgs*>(args)->axis;
  return {{ExchangeKind::rotate, axis.name, axis.ranks, operands[1].bytes()}};
}

Ticket Rotate::start(Stream& s, const Grad* t, const void* args) {
  const auto& a = *static_cast<const RecordArgs*>(args);
  return a.axis.bound().rotate(s, t[0], t[1], a.distance, a.axis.tensor);
}

}  // namespace hpcdl
