#pragma once
// The index of the largest value of each row, the first of equal ones: greedy decoding, where the next step reads its
// token without the host.
//
// logits: (..., V), f32 or 16 bits; ids: (...) i32. A row that contains NaN or infinity, or only -infinity, has no
// largest value: its id is -1 - the index of the first such value.

#include "hpcdl/op.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/emit.h"

namespace hpcdl {

struct Argmax {
  static constexpr std::string_view name = "argmax";
  static void check(const Spec& ids, const Spec& logits);
  static void find(Stream& s, Tensor ids, View logits);
  static void check_record(const RawRecord& r);
  static void run(Stream& s, const Grad* t, const void*) { find(s, t[0], t[1]); }
  static Cost cost(const Spec& logits) { return {.operations = static_cast<double>(logits.size())}; }
};

namespace cpu {
void argmax(Tensor ids, View logits);
}  // namespace cpu
namespace cuda {
void argmax(Stream&, Tensor ids, View logits);
/// Where the next token of each of R sequences belongs, on the device: positions i32 (R), slots i64 (R), -1 for padding,
/// lengths i32 (R), pages i32 (R, W).
struct NextTokens {
  Tensor positions, slots, lengths;
  View pages;
};
/// Writes the ids (R) to pinned memory of the host, and makes `next` one token later: a kernel where a copy each way would
/// keep the next step waiting.
void deliver(Stream&, std::int32_t* to, View ids, const NextTokens& next);
}  // namespace cuda

/// Records the search and overwrites `ids` with its result; `ids` may be the input of the program's next run.
template <Symbolic V> void argmax_into(const V& ids, const V& logits) {
  Argmax::check(ids.spec(), logits.spec());
  const auto operand = update_operand(ids);  // an input keeps its memory until the end
  const decltype(update_operand(ids)) operands[] = {operand, read_operand(logits)};
  logits.graph().template emit<Argmax>(operands, nullptr, 0, Argmax::cost(logits.spec()));
}

}  // namespace hpcdl
