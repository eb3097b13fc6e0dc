#include "hpcdl/ops/attention_merge/attention_merge.h"

namespace hpcdl {

std::array<Spec, 2> AttentionMerge::infer(const Spec& out, const Spec& lse, const Spec& part, const Spec& part_lse,
                                          const Args&) {
  require(out.dtype == DType::f32 && out.shape.rank() == 3, name, "out must be (B, T, H*D) of F32, got {}",
          to_string(out));
  require_float(name, part, "part");
  const bool is_part = part.shape.rank() == 3 && part[0] == out[0] && part[1] <= out[1] && part[2] == out[2];
  require(is_part, name, "part does not fit out: {} and {}", to_string(part), to_string(out));
  const auto heads = lse.shape.rank() == 3 ? lse[1] : 0;
  require(heads >= 1 && out[2] % heads == 0, name, "lse must be (B, H, T), got {} for {}", to_string(lse),
          to_string(out));
  require_spec(name, "lse", lse, {{out[0], heads, out[1]}, DType::f32});
  require_spec(name, "part_lse", part_lse, {{out[0], heads, part[1]}, DType::f32});
  return {out, lse};
}

}  // namespace hpcdl
