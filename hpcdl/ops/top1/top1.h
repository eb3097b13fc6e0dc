#pragma once
// The number of rows whose largest value is at their target: the correct answers of a classifier. Of equal largest
// values the first counts, as in torch's argmax on a CPU; a NaN is never largest, and a row with a negative target is
// never correct.
//
// logits: (..., V), f32 or 16 bits; targets: (...) i32; the count: (1) f32, exact below 2^24. It has no gradient.

#include <span>

#include "hpcdl/op.h"
#include "hpcdl/op_info.h"
#include "hpcdl/ops/require.h"

namespace hpcdl {

struct Top1 {
  static constexpr std::string_view name = "top1";
  static void check(const Spec& logits, const Spec& targets);
  static void count(Stream& s, Tensor correct, View logits, View targets);
  static void check_record(const RawRecord& r);
  static void run(Stream& s, const Grad* t, const void*) { count(s, t[0], t[1], t[2]); }
  static Cost cost(const Spec& logits) { return {.operations = static_cast<double>(logits.size())}; }
};

namespace cpu {
template <class Isa> void top1(Isa, Pool&, Tensor correct, View logits, View targets);
}  // namespace cpu
namespace cuda {
void top1(Stream&, Tensor correct, View logits, View targets);
}  // namespace cuda

/// Records the count.
template <Symbolic V> V top1(const V& logits, const V& targets) {
  Top1::check(logits.spec(), targets.spec());
  const V correct = logits.graph().temporary("correct", {{1}, DType::f32});
  auto out = correct.operand();
  out.access = decltype(out.access)::write;
  const decltype(out) operands[] = {out, logits.operand(), targets.operand()};
  logits.graph().template emit<Top1>(operands, nullptr, 0, Top1::cost(logits.spec()));
  return correct;
}

}  // namespace hpcdl
