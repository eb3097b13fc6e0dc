#pragma once
// Raw records (Graph::emit) for ops/, which does not include graph/: operands from Vars, by access.

#include <span>
#include <type_traits>
#include <vector>

#include "hpcdl/op.h"
#include "hpcdl/op_info.h"
#include "hpcdl/program.h"

namespace hpcdl {

template <Symbolic V> auto read_operand(const V& v) {
  auto o = v.operand();
  o.access = decltype(o.access)::read;
  return o;
}
template <Symbolic V> auto write_operand(const V& v) {
  auto o = v.operand();
  o.access = decltype(o.access)::write;
  return o;
}
template <Symbolic V> auto update_operand(const V& v) {
  auto o = v.operand();
  o.access = decltype(o.access)::update;
  return o;
}

/// Pushes a record of a typed op, outside of differentiation: operands as its forward takes them.
template <class Op, class Graph>
void emit_op(Graph& g, std::span<const Operand> operands, const typename Op::Args& given,
             Phase phase = Phase::backward) {
  static_cast<void>(known_op<Op>);
  constexpr const OpInfo& op = op_info<Op>;
  auto args = given;
  clear_padding(args);
  std::vector<Spec> in;
  for (const auto& o : operands.subspan(op.updates ? 0 : static_cast<std::size_t>(op.n_out))) in.push_back(o.spec);
  g.emit(Op::name, op.forward, operands, &args, sizeof args, op.stated_cost(in.data(), &args), phase, bound_in(args));
}

/// Pushes a record of the update phase (optimizer, gradient norm). Raw has a name and a function `run`. `stated`: see
/// cost.h. `bound`: the Bound in the arguments, if they have one.
template <class Raw, class Graph>
void emit_update(Graph& g, const std::vector<Operand>& operands, const void* args, std::size_t args_bytes,
                 const Cost& stated = {}, const Bound* bound = nullptr) {
  g.template emit<Raw>(std::span<const Operand>(operands), args, args_bytes, stated, Phase::update, bound);
}

}  // namespace hpcdl
