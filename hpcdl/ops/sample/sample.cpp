#include "hpcdl/ops/sample/sample.h"

#include <limits>

#include "hpcdl/program/check.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

void Sample::check(const Spec& ids, const Spec& logits, const Spec& rules) {
  require(logits.dtype == DType::f32 && logits.shape.rank() == 2 && logits[1] > 0 &&
              logits[1] <= std::numeric_limits<std::int32_t>::max(),
          name, "needs F32 (R, V), got {}", to_string(logits));
  require_spec(name, "ids", ids, {{logits[0]}, DType::i32});
  require_spec(name, "rules", rules, {{logits[0], kRuleWords}, DType::i32});
}

void Sample::choose(Stream& s, Tensor ids, View logits, Tensor rules) {
  on(s, [&](auto, Pool&) { cpu::sample(ids, logits, rules); }, [&](auto& q) { cuda::sample(q, ids, logits, rules); });
}

void Sample::check_record(const RawRecord& r) {
  r.require_count(3);
  check(r.contiguous(0), r.spec(1), r.contiguous(2));
}

namespace cpu {

void sample(Tensor ids, View logits, Tensor rules) {
  RowSampler sampler;
  for (std::int64_t r = 0; r < logits.rows(); ++r) {
    const std::span row(logits.ptr<float>() + r * logits.row_stride(), static_cast<std::size_t>(logits.cols()));
    auto& rule = *reinterpret_cast<SampleRule*>(rules.ptr<std::int32_t>() + r * Sample::kRuleWords);
    const auto best = largest_logit(row);
    ids.ptr<std::int32_t>()[r] = best < 0 ? static_cast<std::int32_t>(best) : sampler.sample(row, best, rule);
    ++rule.index;
  }
}

}  // namespace cpu

}  // namespace hpcdl
