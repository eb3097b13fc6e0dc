#include "hpcdl/ops/top1/top1.h"

#include "hpcdl/program/check.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

void Top1::check(const Spec& logits, const Spec& targets) {
  require_float(name, logits, "logits");
  require(logits.shape.rank() > 1 && logits[-1] > 0, name, "needs (..., V), got {}", to_string(logits));
  Shape rows;
  for (int i = 0; i + 1 < logits.shape.rank(); ++i) rows.push_back(logits[i]);
  require_spec(name, "targets", targets, {rows, DType::i32});
}

void Top1::count(Stream& s, Tensor correct, View logits, View targets) {
  on(
      s, [&](auto isa, Pool& pool) { cpu::top1(isa, pool, correct, logits, targets); },
      [&](auto& q) { cuda::top1(q, correct, logits, targets); });
}

void Top1::check_record(const RawRecord& r) {
  r.require_count(3);
  require_spec(name, "the result", r.spec(0), {{1}, DType::f32});
  check(r.spec(1), r.contiguous(2));
}

}  // namespace hpcdl
