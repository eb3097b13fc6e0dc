#include "hpcdl/ops/top1/top1.h"

#include <limits>

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
      s, [&](auto, Pool&) { cpu::top1(correct, logits, targets); },
      [&](auto& q) { cuda::top1(q, correct, logits, targets); });
}

void Top1::check_record(const RawRecord& r) {
  r.require_count(3);
  require_spec(name, "the result", r.spec(0), {{1}, DType::f32});
  check(r.spec(1), r.contiguous(2));
}

namespace cpu {

void top1(Tensor correct, View logits, View targets) {
  const auto count = [&]<class T>() {
    std::int64_t right = 0;
    for (std::int64_t r = 0; r < logits.rows(); ++r) {
      const T* x = logits.ptr<T>() + r * logits.row_stride();
      std::int64_t best = -1;
      float largest = -std::numeric_limits<float>::infinity();
      for (std::int64_t c = 0; c < logits.cols(); ++c)
        if (const auto v = static_cast<float>(x[c]); v > largest || (best < 0 && v == largest)) best = c, largest = v;
      right += best >= 0 && best == targets.ptr<std::int32_t>()[r];
    }
    *correct.ptr<float>() = static_cast<float>(right);
  };
  if (logits.dtype() == DType::f16) count.template operator()<f16>();
  else visit_dtype(logits.dtype(), count);
}

}  // namespace cpu

}  // namespace hpcdl
