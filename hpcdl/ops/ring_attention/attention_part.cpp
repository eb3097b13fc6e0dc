#include "hpcdl/ops/ring_attention/attention_part.h"

#include "hpcdl/program/check.h"

namespace hpcdl {
namespace {

/// The specs of out and lse, from those of q, k and v, which are operands `first` to `first` + 2.
std::array<Spec, 2> infer(const RawRecord& r, std::string_view op, std::size_t first) {
  const auto& a = r.args<Attention::Args>();
  require(a.valid(), op, "whether its mask is causal is neither yes nor no");
  return Attention::infer(r.spec(first), r.spec(first + 1), r.spec(first + 2), a);
}

}  // namespace

void AttentionPart::check_record(const RawRecord& r) {
  r.require_count(kOperands);
  const auto results = infer(r, name, 2);
  require_spec(name, "out", r.spec(0), results[0]);
  require_spec(name, "lse", r.contiguous(1), results[1]);
}

void AttentionPartGradient::check_record(const RawRecord& r) {
  r.require_count(kOperands);
  const auto results = infer(r, name, 3);
  const Spec q = r.spec(3), k = r.spec(4), v = r.spec(5);
  if (r.spec(0)) require_spec(name, "dq", r.spec(0), q);
  if (r.spec(1)) require_spec(name, "dk", r.spec(1), k);
  if (r.spec(2)) require_spec(name, "dv", r.spec(2), v);
  require_spec(name, "out", r.spec(6), results[0]);
  require_spec(name, "lse", r.spec(7), results[1]);
  require_spec(name, "dout", r.spec(8), results[0]);
  require_spec(name, "scratch", r.contiguous(9), Attention::backward_scratch(q, k, v, r.args<RecordArgs>())[0]);
}

}  // namespace hpcdl
