#include "hpcdl/ops/logit_rules/logit_rules.h"

#include <limits>

#include "hpcdl/program/check.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

void LogitRules::check(const Spec& logits, const Spec& rules, const Spec& starts, const Spec& changes,
                       const Spec& masks) {
  require(logits.dtype == DType::f32 && logits.shape.rank() == 2 && logits[1] > 0 &&
              logits[1] <= std::numeric_limits<std::int32_t>::max(),
          name, "needs F32 (R, V), got {}", to_string(logits));
  const auto rows = logits[0];
  require_spec(name, "rules", rules, {{rows, kRuleWords}, DType::i32});
  require_spec(name, "starts", starts, {{2 * rows + 1}, DType::i32});
  require(changes.dtype == DType::i32 && changes.shape.rank() == 2 && changes[1] == kChangeWords, name,
          "changes must be I32 (N, {}), got {}", kChangeWords, to_string(changes));
  require(masks.dtype == DType::i32 && masks.shape.rank() == 2 && masks[1] == mask_words(logits[1]), name,
          "masks must be I32 (M, {}), got {}", mask_words(logits[1]), to_string(masks));
}

void LogitRules::apply(Stream& s, Tensor logits, View rules, View starts, View changes, View masks) {
  on(
      s, [&](auto, Pool&) { cpu::logit_rules(logits, rules, starts, changes, masks); },
      [&](auto& q) { cuda::logit_rules(q, logits, rules, starts, changes, masks); });
}

void LogitRules::check_record(const RawRecord& r) {
  r.require_count(5);
  check(r.spec(0), r.contiguous(1), r.contiguous(2), r.contiguous(3), r.contiguous(4));
}

namespace cpu {

void logit_rules(Tensor logits, View rules, View starts, View changes, View masks) {
  const auto* begin = starts.ptr<std::int32_t>();
  const auto list = [&](std::int64_t i) {
    require(begin[i] >= 0 && begin[i] <= begin[i + 1] && begin[i + 1] <= changes[0], LogitRules::name,
            "starts {} and {} do not fit {} changes", begin[i], begin[i + 1], changes[0]);
    return std::span(reinterpret_cast<const LogitChange*>(changes.ptr<std::int32_t>()) + begin[i],
                     static_cast<std::size_t>(begin[i + 1] - begin[i]));
  };
  for (std::int64_t r = 0; r < logits.rows(); ++r) {
    const auto& rule =
        *reinterpret_cast<const LogitRules::Rule*>(rules.ptr<std::int32_t>() + r * LogitRules::kRuleWords);
    require(rule.mask >= -1 && rule.mask < masks[0], LogitRules::name, "row {} names mask {} of {}", r, rule.mask,
            masks[0]);
    std::span<const std::uint32_t> mask;
    if (rule.mask >= 0)
      mask = {reinterpret_cast<const std::uint32_t*>(masks.ptr<std::int32_t>()) + rule.mask * masks[1],
              static_cast<std::size_t>(masks[1])};
    apply_rules({logits.ptr<float>() + r * logits.row_stride(), static_cast<std::size_t>(logits.cols())},
                {rule.penalties, list(2 * r), list(2 * r + 1), mask});
  }
}

}  // namespace cpu

}  // namespace hpcdl
