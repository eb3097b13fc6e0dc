#pragma once
// y[t] = table[ids[t]] (+ positions[p]), where p = places[t], or t mod T without places; T = last dim of ids.
//
// ids: (..., T) i32. table: (V, C), positions: (P, C) or absent, f32 or bf16 each. places: i32 like ids or absent; with
// it there is no gradient. y: (..., T, C) of dtype Args::out (none: that of the table). An id outside [0, V) or a position outside [0, P) gives a row of NaN; neither forward nor
// backward accesses memory out of bounds. The code that creates the ids checks them.
//
// Backward sorts the tokens by id (counting sort into scratch), so that every row of the table's gradient is summed in
// float and written once: on a CPU in the order of the tokens, on a GPU in that order by chunks. The result's bits do
// not depend on threads.

#include "hpcdl/op.h"
#include "hpcdl/ops/places.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

struct Embedding {
  static constexpr std::string_view name = "embedding";
  static constexpr bool kGathers = true;
  struct Args {
    DType out = DType::none;
  };
  static Spec infer(const Spec& table, const Spec& ids, const Spec& positions, const Spec& places, const Args& a) {
    require_float(name, table, "table");
    require(table.shape.rank() == 2, name, "table must be (V, C), got {}", to_string(table));
    require(ids.dtype == DType::i32 && ids.shape.rank() >= 1 && ids.shape.rank() < Shape::kMaxRank, name,
            "ids must be I32 of one to five dimensions, got {}", to_string(ids));
    if (positions) {
      require_float(name, positions, "positions");
      const auto least = places ? 1 : ids[-1];
      require(positions.shape.rank() == 2 && positions[1] == table[1] && positions[0] >= least, name,
              "positions must be (at least {}, {}), got {}", least, table[1], to_string(positions));
    }
    if (places) require_positions_of(name, places, ids.size());
    Spec y{ids.shape, a.out == DType::none ? table.dtype : a.out};
    y.shape.push_back(table[1]);
    return require_float(name, y, "output");
  }
  static Cost cost(const Spec& table, const Spec& ids, const Spec& positions, const Spec&, const Args&) {
    const auto n = ids.size() * table[1];
    Cost c = rows_apart(table, ids, positions);
    c.operations = positions ? static_cast<double>(n) : 0;
    c.reads += static_cast<double>(n * dtype_bytes(table.dtype));
    return c;
  }
  static Cost backward_cost(const Spec& table, const Spec& ids, const Spec& positions, const Spec&, const Args&) {
    return {.operations = (positions ? 2 : 1) * static_cast<double>(ids.size() * table[1])};
  }
  /// Cost of T rows of the positions, without reading the table.
  static Cost rows_apart(const Spec& table, const Spec& ids, const Spec& positions) {
    const auto unread = positions ? (positions[0] - ids[-1]) * positions[1] * dtype_bytes(positions.dtype) : 0;
    return {.reads = -static_cast<double>(table.bytes() + unread)};
  }
  /// Sorted tokens that one block of a GPU sums; if tokens of one id are in several blocks, their sums are added
  /// afterwards.
  static constexpr std::int64_t kChunk = 32;
  /// The start of each id's tokens, the tokens by id; for a GPU also each token's place among those of its id, and sums
  /// of ids that span several chunks.
  static std::array<Spec, 4> backward_scratch(const Spec& table, const Spec& ids, const Spec&, const Spec&,
                                              const Args&) {
    const auto tokens = ids.size();
    return {Spec{{table[0] + 1}, DType::i32}, Spec{{tokens}, DType::i32},
            Spec{{tokens + table[0] / 1024 + 1}, DType::i32},
            Spec{{(tokens + kChunk - 1) / kChunk, 2, table[1]}, DType::f32}};
  }
  static void forward(Stream& s, Tensor y, View table, View ids, View positions, View places, const Args&);
  static void backward(Stream& s, Grad dtable, Grad dpositions, View ids, View dy, Tensor starts, Tensor order,
                       Tensor ranks, Tensor parts, const Args&);
  using Backward = Operands<dIn<0>, dIn<2>, In<1>, dOut<0>, Scratch<0>, Scratch<1>, Scratch<2>, Scratch<3>>;
};

namespace cpu {
template <class Isa> void embedding(Isa, Pool&, Tensor y, View table, View ids, View positions, View places);
/// starts: (V + 1) i32, order: one i32 per token; both scratch.
template <class Isa>
void embedding_backward(Isa, Pool&, Grad dtable, Grad dpositions, View ids, View dy, Tensor starts, Tensor order);
}  // namespace cpu
namespace cuda {
void embedding(Stream&, Tensor y, View table, View ids, View positions, View places);
void embedding_backward(Stream&, Grad dtable, Grad dpositions, View ids, View dy, Tensor starts, Tensor order,
                        Tensor ranks, Tensor parts);
}  // namespace cuda

inline void Embedding::forward(Stream& s, Tensor y, View table, View ids, View positions, View places, const Args&) {
  on(
      s, [&](auto isa, Pool& pool) { cpu::embedding(isa, pool, y, table, ids, positions, places); },
      [&](auto& q) { cuda::embedding(q, y, table, ids, positions, places); });
}
inline void Embedding::backward(Stream& s, Grad dtable, Grad dpositions, View ids, View dy, Tensor starts, Tensor order,
                                [[maybe_unused]] Tensor ranks, [[maybe_unused]] Tensor parts, const Args&) {
  on(
      s, [&](auto isa, Pool& pool) { cpu::embedding_backward(isa, pool, dtable, dpositions, ids, dy, starts, order); },
      [&](auto& q) { cuda::embedding_backward(q, dtable, dpositions, ids, dy, starts, order, ranks, parts); });
}

template <Symbolic V> V embedding(const V& table, const V& ids, Embedding::Args a = {}) {
  return record<Embedding>(a, table, ids, V(), V());
}
template <Symbolic V>
V embedding(const V& table, const V& ids, const V& positions, Embedding::Args a = {}, const V& places = {}) {
  if (places) require_no_gradient(Embedding::name, table);
  return record<Embedding>(a, table, ids, positions, places);
}

}  // namespace hpcdl
