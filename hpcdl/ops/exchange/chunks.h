#pragma once
// The order of the tokens of sequences that several ranks share (context parallelism). A sequence of T tokens is cut into
// 2p chunks for p ranks, of which rank r has chunks r and 2p - 1 - r.
//
//   by rank       (2 p B, T / 2p, C): of every rank in turn, its first chunk of all B sequences, then its second of all
//   by position   (B, T, C)
//
// Both ops are copies, and each is the adjoint of the other.

#include "hpcdl/op.h"
#include "hpcdl/ops/require.h"

namespace hpcdl {

struct ChunkArgs {
  int ranks = 1;
  bool valid() const { return ranks >= 1 && ranks <= 1 << 20; }
  /// The place in the sequence of chunk i (0, 1) of a rank.
  int place(int rank, int i) const { return i == 0 ? rank : 2 * ranks - 1 - rank; }
};

/// From the order by rank to that by position.
struct OrderChunks {
  static constexpr std::string_view name = "order_chunks";
  using Args = ChunkArgs;
  static Spec infer(const Spec& x, const Args& a);
  static void forward(Stream& s, Tensor y, View x, const Args& a);
  static void backward(Stream& s, Grad dx, View dy, const Args& a);
  using Backward = Operands<dIn<0>, dOut<0>>;
};

/// From the order by position to that by rank.
struct DivideChunks {
  static constexpr std::string_view name = "divide_chunks";
  using Args = ChunkArgs;
  static Spec infer(const Spec& x, const Args& a);
  static void forward(Stream& s, Tensor y, View x, const Args& a);
  static void backward(Stream& s, Grad dx, View dy, const Args& a);
  using Backward = Operands<dIn<0>, dOut<0>>;
};

template <Symbolic V> V order_chunks(const V& x, int ranks) { return record<OrderChunks>({ranks}, x); }
template <Symbolic V> V divide_chunks(const V& x, int ranks) { return record<DivideChunks>({ranks}, x); }

}  // namespace hpcdl
