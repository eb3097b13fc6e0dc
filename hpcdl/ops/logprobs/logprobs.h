#pragma once
// The log-probabilities of tokens in rows of logits: of one token of each row, and of the N most likely ones.
//
// logits: (R, V) f32, rows may be strided; wanted and found: (R) i32. The token of row r is wanted[r], or found[r]
// where that is -1: the token that a text has, or the one that `sample` chooses. to: (R, 1 + N, 2) i32, the words of a
// TokenLogprob each (row_logprobs.h): that token, then the most likely ones in their order, the first of equal ones
// first, and {-1, -infinity} beyond V. N is at most kMost. A row that contains NaN or +infinity, or nothing but
// -infinity, gives NaN, and so does an id that is not one of the row's.
//
// A CPU adds doubles, a GPU floats in an order that depends on V alone: a row's result does not depend on other rows.

#include "hpcdl/op.h"
#include "hpcdl/ops/logprobs/row_logprobs.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/emit.h"

namespace hpcdl {

struct Logprobs {
  static constexpr std::string_view name = "logprobs";
  static constexpr std::int64_t kWords = sizeof(TokenLogprob) / sizeof(std::int32_t), kMost = 64;
  static Spec result(std::int64_t rows, std::int64_t most) { return {{rows, 1 + most, kWords}, DType::i32}; }

  static void check(const Spec& to, const Spec& logits, const Spec& wanted, const Spec& found);
  static void write(Stream& s, Tensor to, View logits, View wanted, View found);
  static void check_record(const RawRecord& r);
  static void run(Stream& s, const Grad* t, const void*) { write(s, t[0], t[1], t[2], t[3]); }
  static Cost cost(const Spec& logits) { return {.operations = 2 * static_cast<double>(logits.size())}; }
};

namespace cpu {
void logprobs(Pool&, Tensor to, View logits, View wanted, View found);
}  // namespace cpu
namespace cuda {
void logprobs(Stream&, Tensor to, View logits, View wanted, View found);
}  // namespace cuda

/// Records them, written to `to`.
template <Symbolic V> void logprobs_into(const V& to, const V& logits, const V& wanted, const V& found) {
  Logprobs::check(to.spec(), logits.spec(), wanted.spec(), found.spec());
  const decltype(write_operand(to)) operands[] = {write_operand(to), read_operand(logits), read_operand(wanted),
                                                  read_operand(found)};
  logits.graph().template emit<Logprobs>(operands, nullptr, 0, Logprobs::cost(logits.spec()));
}

}  // namespace hpcdl
