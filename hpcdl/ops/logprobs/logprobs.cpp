#include "hpcdl/ops/logprobs/logprobs.h"

#include <algorithm>
#include <limits>

#include "hpcdl/ops/rows.h"
#include "hpcdl/ops/sample/row_sampler.h"
#include "hpcdl/program/check.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

void Logprobs::check(const Spec& to, const Spec& logits, const Spec& wanted, const Spec& found) {
  require(logits.dtype == DType::f32 && logits.shape.rank() == 2 && logits[1] > 0 &&
              logits[1] <= std::numeric_limits<std::int32_t>::max(),
          name, "needs F32 (R, V), got {}", to_string(logits));
  const Spec ids{{logits[0]}, DType::i32};
  require_spec(name, "wanted", wanted, ids);
  require_spec(name, "found", found, ids);
  require(to.shape.rank() == 3 && to[1] >= 1 && to[1] <= 1 + kMost, name,
          "writes (R, 1 + N, {}) with N from 0 to {}, got {}", kWords, kMost, to_string(to));
  require_spec(name, "result", to, result(logits[0], to[1] - 1));
}

void Logprobs::write(Stream& s, Tensor to, View logits, View wanted, View found) {
  on(
      s, [&](auto, Pool& pool) { cpu::logprobs(pool, to, logits, wanted, found); },
      [&](auto& q) { cuda::logprobs(q, to, logits, wanted, found); });
}

void Logprobs::check_record(const RawRecord& r) {
  r.require_count(4);
  check(r.contiguous(0), r.spec(1), r.contiguous(2), r.contiguous(3));
}

namespace cpu {

void logprobs(Pool& pool, Tensor to, View logits, View wanted, View found) {
  const auto width = static_cast<std::size_t>(to.shape()[1]);
  for_rows(pool, logits.rows(), logits.cols(), [&](std::int64_t begin, std::int64_t end) {
    for (auto r = begin; r < end; ++r) {
      const std::span row(logits.ptr<float>() + r * logits.row_stride(), static_cast<std::size_t>(logits.cols()));
      const std::span of_row(
          reinterpret_cast<TokenLogprob*>(to.ptr<std::int32_t>()) + r * static_cast<std::int64_t>(width), width);
      const auto given = wanted.ptr<std::int32_t>()[r], id = given >= 0 ? given : found.ptr<std::int32_t>()[r];
      const auto best = largest_logit(row);
      if (best >= 0 && id >= 0 && id < logits.cols()) write_logprobs(of_row, row, best, id);
      else std::ranges::fill(of_row, TokenLogprob{id, std::numeric_limits<float>::quiet_NaN()});
    }
  });
}

}  // namespace cpu

}  // namespace hpcdl
