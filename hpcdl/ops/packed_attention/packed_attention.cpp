#include "hpcdl/ops/packed_attention/packed_attention.h"

namespace hpcdl {

Spec PackedAttention::infer(const Spec& q, const Spec& k, const Spec& v, const Spec& starts, const Args& a) {
  const auto out =
      Attention::infer(q, k, v, {.heads = a.heads, .kv_heads = a.kv_heads, .causal = false, .scale = a.scale})[0];
  require(q.shape.rank() == 3 && q[0] == 1 && k[1] == q[1], name, "q, k and v must be (1, T, heads*D), got {} and {}",
          to_string(q), to_string(k));
  require(starts.dtype == DType::i32 && starts.shape.rank() == 1 && starts[0] >= 2, name,
          "starts must be I32 (sequences + 1), got {}", to_string(starts));
  require(a.most >= 0, name, "a sequence cannot have {} tokens", a.most);
  return out;
}

Cost PackedAttention::cost(const Spec& q, const Spec&, const Spec&, const Spec&, const Args& a) {
  return {.operations = 4 * static_cast<double>(a.longest(q)) * static_cast<double>(q.size())};
}

void require_starts(const View& q, const View& starts, const PackedAttention::Args& a) {
  constexpr auto name = PackedAttention::name;
  const auto* start = starts.ptr<std::int32_t>();
  const auto sequences = starts[0] - 1, longest = a.longest(q.spec());
  require(start[0] == 0 && start[sequences] == q[1], name, "starts must run from 0 to {}, got {} .. {}", q[1], start[0],
          start[sequences]);
  for (std::int64_t r = 0; r < sequences; ++r) {
    const auto tokens = start[r + 1] - start[r];
    require(tokens >= 0 && tokens <= longest, name, "sequence {} has {} tokens, expected 0 .. {}", r, tokens, longest);
  }
}

}  // namespace hpcdl
