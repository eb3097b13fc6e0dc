#pragma once
// Tokens on their way to the ranks that have the experts they chose, and back. Rank r of p has the experts
// [r E / p, (r + 1) E / p). A token goes to a rank once, however many of the rank's experts it chose; that rank multiplies
// by all of them (ops/expert_mlp) and returns one weighted sum.
//
//   expert_dispatch   tokens, sorted into p equal parts, one for each rank
//   swap_parts        (ops/exchange) sends part r to rank r
//   expert_mlp        of the tokens that came, with the experts that this rank has
//   swap_parts        sends the results back
//   expert_combine    adds the results to the token's row
//
// Parts have room for a fixed number of tokens, so that shapes do not depend on data. What does not fit is dropped:
// expert_dropped() counts it. Results and gradients of what fits do not depend on the room. Source: Lepikhin et al.,
// "GShard", 2020 (all-to-all with room for a fixed number of tokens).

#include <vector>

#include "hpcdl/op.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/emit.h"

namespace hpcdl {

/// x (..., K); weights f32 and experts i32: (..., count), as moe_route() gives them. Returns
///   rows          (p, room, K), of the type of x: the tokens of part r in their order, then zeros
///   row_weights   (p, room, c) f32, and
///   row_experts   (p, room, c) i32, with c = min(count, E / p): the weights of the experts that rank r has, and their
///                 numbers on that rank, then 0 and -1
///   places        (..., p) i32: the token's row in part r; kElsewhere if it chose no expert of rank r; kDropped
struct ExpertDispatch {
  static constexpr std::string_view name = "expert_dispatch";
  static constexpr std::int32_t kElsewhere = -1, kDropped = -2;
  struct Args {
    std::int64_t experts = 1, room = 0;
    int ranks = 1;
    bool valid() const { return experts >= 1 && room >= 0 && ranks >= 1 && ranks <= 1 << 20; }
  };
  static std::array<Spec, 4> infer(const Spec& x, const Spec& weights, const Spec& experts, const Args& a);
  static void forward(Stream& s, Tensor rows, Tensor row_weights, Tensor row_experts, Tensor places, View x,
                      View weights, View experts, const Args& a);
  static void backward(Stream& s, Grad dx, Grad dweights, View experts, View places, View drows, View drow_weights,
                       const Args& a);
  using Backward = Operands<dIn<0>, dIn<1>, In<2>, Out<3>, dOut<0>, dOut<1>>;
};

/// y = base + the results of each token. base, y (..., K); parts (p, room, K), of their type; places (..., p), as
/// expert_dispatch() gives them.
struct ExpertCombine {
  static constexpr std::string_view name = "expert_combine";
  struct Args {
    bool addend = false;  // a summand of a sum over ranks: another rank adds base, whose gradient is unchanged
  };
  static Spec infer(const Spec& base, const Spec& parts, const Spec& places, const Args& a);
  static Cost cost(const Spec& base, const Spec& parts, const Spec&, const Args& a) {
    return {.operations = static_cast<double>(parts.size()),
            .reads = a.addend ? -static_cast<double>(base.bytes()) : 0};
  }
  static void forward(Stream& s, Tensor y, View base, View parts, View places, const Args& a);
  static void backward(Stream& s, Grad dbase, Grad dparts, View places, View dy, const Args& a);
  using Backward = Operands<dIn<0>, dIn<1>, In<2>, dOut<0>>;
};

/// One f32: how many of the places are kDropped, added to those of earlier layers, which may be absent.
struct ExpertDropped {
  static constexpr std::string_view name = "expert_dropped";
  static constexpr Spec kSum{{1}, DType::f32};
  struct Args {};
  static Spec infer(const Spec& places, const Spec& before, const Args&);
  static Cost cost(const Spec& places, const Spec&, const Args&) {
    return {.operations = static_cast<double>(places.size())};
  }
  static void forward(Stream& s, Tensor sum, View places, View before, const Args&);
};

/// A record without outputs: sets StepParams::skip if its operand, a sum that expert_dropped() gave, is positive, so that
/// the optimizer changes nothing. It follows the record of the gradient norm, which sets skip, too.
struct SkipIfDropped {
  static constexpr std::string_view name = "skip_if_dropped";
  struct RecordArgs {
    std::int64_t unused = 0;
  };
  static void run(Stream& s, const Grad* operands, const void*);
  static void check_record(const RawRecord& r);
};

namespace cuda {
void expert_dispatch(Stream&, Tensor rows, Tensor row_weights, Tensor row_experts, Tensor places, View x, View weights,
                     View experts, const ExpertDispatch::Args& a);
/// drow_weights may be absent, which is zero.
void expert_dispatch_backward(Stream&, Grad dx, Grad dweights, View experts, View places, View drows, View drow_weights,
                              const ExpertDispatch::Args& a);
/// base may be absent.
void expert_combine(Stream&, Tensor y, View base, View parts, View places);
void expert_combine_backward(Stream&, Grad dparts, View places, View dy);
void expert_dropped(Stream&, Tensor sum, View places, View before);
void skip_if_dropped(Stream&, View dropped);
}  // namespace cuda

/// {rows, row_weights, row_experts, places}
template <Symbolic V>
auto expert_dispatch(const V& x, const V& weights, const V& experts, const ExpertDispatch::Args& a) {
  return record<ExpertDispatch>(a, x, weights, experts);
}
template <Symbolic V> V expert_combine(const V& base, const V& parts, const V& places, const ExpertCombine::Args& a) {
  return record<ExpertCombine>(a, base, parts, places);
}
template <Symbolic V> V expert_dropped(const V& places, const V& before) {
  return record<ExpertDropped>({}, places, before);
}
template <class Graph, Symbolic V> void record_skip_if_dropped(Graph& g, const V& dropped) {
  const SkipIfDropped::RecordArgs none;
  emit_update<SkipIfDropped>(g, std::vector{read_operand(dropped)}, &none, sizeof none);
}

}  // namespace hpcdl
