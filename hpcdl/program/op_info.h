#pragma once
// An op as data: what the recorder, the executor and the test bench need, with the types erased.
//
// Optional members of an op besides those in op.h, for exchanges between ranks:
//   kUpdates      forward has no separate output: it gets input 0 as a Tensor, to be overwritten by the result,
//                 then the other inputs. The gradient of the result is that of input 0
//   no forward    the output is input 0 itself, and no record is pushed: such an op has a gradient rule only
//   record_backward(graph, operands, args)
//                 instead of backward: pushes records of other ops; a template, since ops do not know the recorder.
//                 `operands` are those that Backward lists
//   exchanges(specs, args)
//                 what a record exchanges with other ranks (program/axis.h), from the specs of its operands

#include <cstring>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "hpcdl/program/bound.h"
#include "hpcdl/program/op.h"
#include "hpcdl/program/valid.h"

namespace hpcdl {

class Graph;
struct Exchange;
struct Operand;

/// Runs one record. Operands: forward = outputs, inputs, scratch; backward = the op's Backward list.
using RunFn = void (*)(Stream&, const Grad* operands, const void* args);
/// What a record exchanges with other ranks, from the specs of its operands.
using ExchangesFn = std::vector<Exchange> (*)(std::span<const Spec> operands, const void* args);

struct OpInfo {
  static constexpr int kMaxOut = 4, kMaxScratch = 4;

  std::string_view name;
  int n_in = 0, n_out = 0, n_aux = 0;
  bool gathers = false, updates = false, renames = false;
  int passes = -1;  // Op::kPasses: the input whose gradient is that of output 0 unchanged, recorded without a copy
                    // where that is possible
  int splits =
      -1;  // Op::kSplits: the input whose gradient a call of its own may compute, with all other gradients absent
  OpClass cls = OpClass::other;
  unsigned casts = 0;  // bit i: autocast may cast input i
  std::size_t args_bytes = 0;
  Bound* (*bound)(void* args) = nullptr;      // null where they have none
  bool (*valid)(const void* args) = nullptr;  // valid_args()
  void (*infer)(const Spec* in, const void* args, Spec* out) = nullptr;
  Cost (*cost)(const Spec* in, const void* args) = nullptr;  // null: no arithmetic, the bytes of all operands
  int (*scratch)(const Spec* in, const void* args, Spec* out) = nullptr;  // returns how many
  RunFn forward = nullptr;
  // Backward; `backward` is null for an op without one.
  std::span<const OperandRef> backward_operands;
  int (*backward_scratch)(const Spec* in, const void* args, Spec* out) = nullptr;
  Cost (*backward_cost)(const Spec* in, const void* args) = nullptr;  // null: from `cost`
  RunFn backward = nullptr;
  /// Instead of `backward`: records the gradient as records of other ops. Operands as of `backward`.
  void (*record_backward)(Graph&, std::span<const Operand>, const void* args) = nullptr;
  ExchangesFn exchanges = nullptr;  // null: nothing

  bool differentiable() const { return backward || record_backward; }
  /// What a record of the op states of its cost (cost.h).
  Cost stated_cost(const Spec* in, const void* args) const { return cost ? cost(in, args) : Cost(); }
};

namespace detail {

template <class F> struct Signature;
template <class R, class... A> struct Signature<R (*)(A...)> {
  static constexpr int arity = sizeof...(A);
  template <int I> using Arg = std::remove_cvref_t<std::tuple_element_t<I, std::tuple<A...>>>;
};

template <class T> inline constexpr int count_of = 1;
template <class T, std::size_t N> inline constexpr int count_of<std::array<T, N>> = static_cast<int>(N);

template <class Op, std::size_t... I>
decltype(auto) call_infer(const Spec* in, const typename Op::Args& a, std::index_sequence<I...>) {
  return Op::infer(in[I]..., a);
}

inline void put(Spec* out, const Spec& s) { out[0] = s; }
template <std::size_t N> void put(Spec* out, const std::array<Spec, N>& s) {
  for (std::size_t i = 0; i < N; ++i) out[i] = s[i];
}

template <class Op> struct Traits {
  using Args = typename Op::Args;
  static constexpr int n_in = Signature<decltype(&Op::infer)>::arity - 1;
  using Ins = std::make_index_sequence<static_cast<std::size_t>(n_in)>;
  static constexpr int n_out =
      count_of<std::remove_cvref_t<decltype(call_infer<Op>(nullptr, std::declval<const Args&>(), Ins{}))>>;
  // Stream, outputs, inputs, scratch, Args
  static constexpr int n_forward = [] {
    if constexpr (requires { &Op::forward; }) return Signature<decltype(&Op::forward)>::arity - 2;
    else return 0;
  }();
  static constexpr bool has_backward = requires { typename Op::Backward; };
  static_assert(std::is_trivially_copyable_v<Args>);
};

template <class Op, class G, std::size_t... I>
int collect(G&& get, const Spec* in, const void* args, Spec* out, std::index_sequence<I...>) {
  const auto list = get(in[I]..., *static_cast<const typename Op::Args*>(args));
  for (std::size_t i = 0; i < list.size(); ++i) out[i] = list[i];
  return static_cast<int>(list.size());
}

template <class Op, std::size_t... I>
void run_forward(Stream& s, const Grad* t, const void* args, std::index_sequence<I...>) {
  Op::forward(s, t[I]..., *static_cast<const typename Op::Args*>(args));
}
template <class Op, std::size_t... I>
void run_backward(Stream& s, const Grad* t, const void* args, std::index_sequence<I...>) {
  Op::backward(s, t[I]..., *static_cast<const typename Op::Args*>(args));
}
template <class Op, std::size_t... I> Cost run_cost(const Spec* in, const void* args, std::index_sequence<I...>) {
  return Op::cost(in[I]..., *static_cast<const typename Op::Args*>(args));
}
template <class Op, std::size_t... I>
Cost run_backward_cost(const Spec* in, const void* args, std::index_sequence<I...>) {
  return Op::backward_cost(in[I]..., *static_cast<const typename Op::Args*>(args));
}

template <class Op> constexpr OpInfo make_op_info() {
  using T = Traits<Op>;
  using Args = typename Op::Args;
  OpInfo info;
  info.name = Op::name;
  info.n_in = T::n_in;
  info.n_out = T::n_out;
  if constexpr (requires { Op::kAux; }) info.n_aux = Op::kAux;
  if constexpr (requires { Op::kGathers; }) info.gathers = Op::kGathers;
  if constexpr (requires { Op::kSplits; }) info.splits = Op::kSplits;
  if constexpr (requires { Op::kPasses; }) info.passes = Op::kPasses;
  if constexpr (requires { Op::kClass; }) info.cls = Op::kClass, info.casts = Op::kCasts;
  info.args_bytes = sizeof(Args);
  if constexpr (requires { Op::kUpdates; }) info.updates = Op::kUpdates;
  if constexpr (requires { &Op::exchanges; }) info.exchanges = &Op::exchanges;
  if constexpr (kBinds<Args>) info.bound = [](void* a) { return bound_in(*static_cast<Args*>(a)); };
  info.valid = [](const void* a) { return valid_args(*static_cast<const Args*>(a)); };
  info.infer = [](const Spec* in, const void* a, Spec* out) {
    put(out, call_infer<Op>(in, *static_cast<const Args*>(a), typename T::Ins{}));
  };
  if constexpr (requires { &Op::cost; })
    info.cost = [](const Spec* in, const void* a) { return run_cost<Op>(in, a, typename T::Ins{}); };
  if constexpr (requires { &Op::scratch; }) {
    info.scratch = [](const Spec* in, const void* a, Spec* out) {
      return collect<Op>([](auto&&... x) { return Op::scratch(x...); }, in, a, out, typename T::Ins{});
    };
  }
  if constexpr (requires { &Op::forward; })
    info.forward = [](Stream& s, const Grad* t, const void* a) {
      run_forward<Op>(s, t, a, std::make_index_sequence<static_cast<std::size_t>(T::n_forward)>{});
    };
  else info.renames = true;
  if constexpr (T::has_backward) {
    info.backward_operands = Op::Backward::refs;
    if constexpr (requires { &Op::backward_scratch; }) {
      info.backward_scratch = [](const Spec* in, const void* a, Spec* out) {
        return collect<Op>([](auto&&... x) { return Op::backward_scratch(x...); }, in, a, out, typename T::Ins{});
      };
    }
    if constexpr (requires { &Op::backward_cost; })
      info.backward_cost = [](const Spec* in, const void* a) {
        return run_backward_cost<Op>(in, a, typename T::Ins{});
      };
    if constexpr (requires { &Op::backward; })
      info.backward = [](Stream& s, const Grad* t, const void* a) {
        run_backward<Op>(s, t, a, std::make_index_sequence<Op::Backward::refs.size()>{});
      };
    else
      info.record_backward = [](Graph& g, std::span<const Operand> o, const void* a) {
        Op::record_backward(g, o, *static_cast<const Args*>(a));
      };
  }
  return info;
}

}  // namespace detail

template <class Op> inline constexpr OpInfo op_info = detail::make_op_info<Op>();

}  // namespace hpcdl
