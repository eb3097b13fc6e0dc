#include "hpcdl/ops/argmax/argmax.h"

#include <cmath>
#include <limits>

#include "hpcdl/program/check.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

void Argmax::check(const Spec& ids, const Spec& logits) {
  require_float(name, logits, "logits");
  require(logits.shape.rank() > 1 && logits[-1] > 0 && logits[-1] <= std::numeric_limits<std::int32_t>::max(), name,
          "needs (..., V), got {}", to_string(logits));
  Shape rows;
  for (int i = 0; i + 1 < logits.shape.rank(); ++i) rows.push_back(logits[i]);
  require_spec(name, "ids", ids, {rows, DType::i32});
}

void Argmax::find(Stream& s, Tensor ids, View logits) {
  on(s, [&](auto, Pool&) { cpu::argmax(ids, logits); }, [&](auto& q) { cuda::argmax(q, ids, logits); });
}

void Argmax::check_record(const RawRecord& r) {
  r.require_count(2);
  check(r.contiguous(0), r.spec(1));
}

namespace cpu {

void argmax(Tensor ids, View logits) {
  visit_dtype(logits.dtype(), [&]<class T>() {
    for (std::int64_t r = 0; r < logits.rows(); ++r) {
      const T* x = logits.ptr<T>() + r * logits.row_stride();
      std::int64_t best = -1;  // all values are -infinity: the result is -1 - 0
      float largest = -std::numeric_limits<float>::infinity();
      for (std::int64_t c = 0; c < logits.cols(); ++c) {
        const auto v = static_cast<float>(x[c]);
        if (std::isnan(v) || v == std::numeric_limits<float>::infinity()) {
          best = -1 - c;
          break;
        }
        if (v > largest) best = c, largest = v;
      }
      ids.ptr<std::int32_t>()[r] = static_cast<std::int32_t>(best);
    }
  });
}

}  // namespace cpu

}  // namespace hpcdl
