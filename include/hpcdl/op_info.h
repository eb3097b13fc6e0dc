#pragma once
// Ops by name: how a record refers to an op, and how a process finds the functions to run.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "hpcdl/op.h"
#include "hpcdl/ticket.h"

namespace hpcdl {

// Objects that records use besides tensors and that a program cannot hold: groups of ranks, and the objects that track
// them.

/// An object of the process that the arguments of a record name. In a program `at` is null; an Instance has its own
/// copy of the arguments, in which it is set.
struct Bound {
  char name[24] = {};
  const void* at = nullptr;

  Bound() = default;
  Bound(std::string_view called, const void* where) : at(where) {
    called.copy(name, std::min(called.size(), sizeof name - 1));
  }
};

template <class Args>
concept HasAxis = requires(Args& a) { requires std::is_base_of_v<Bound, decltype(a.axis)>; };
/// Whether a record with such arguments names an object.
template <class Args> inline constexpr bool kBinds = std::is_base_of_v<Bound, Args> || HasAxis<Args>;

/// The Bound in a record's arguments: their base class, or their member `axis`; null if they have none.
template <class Args> Bound* bound_in(Args& args) {
  if constexpr (std::is_base_of_v<Bound, Args>) return &args;
  else if constexpr (HasAxis<Args>) return &args.axis;
  else return nullptr;
}

// Checks arguments that may have come from a file: every flag and every enumeration must have one of its values.

template <class T> bool valid_args(const T& t);

namespace detail {

struct Anything {
  template <class T> operator T() const;
};
template <class T, std::size_t... I> constexpr bool has_fields(std::index_sequence<I...>) {
  return requires { T{(static_cast<void>(I), Anything{})...}; };
}
template <class T, std::size_t N = 8> constexpr std::size_t fields_of() {
  if constexpr (N == 0 || has_fields<T>(std::make_index_sequence<N>())) return N;
  else return fields_of<T, N - 1>();
}

/// Whether an enumerator has this value: compilers print other values as casts.
template <auto V> constexpr bool has_name() {
  constexpr std::string_view text = __PRETTY_FUNCTION__;
  return text.substr(text.find("V = ") + 4, 1) != "(";
}
template <class E, std::size_t... I> bool is_named(unsigned value, std::index_sequence<I...>) {
  return ((value == I && has_name<static_cast<E>(I)>()) || ...);
}

template <class... F> bool all_valid(const F&... fields) { return (valid_args(fields) && ...); }

}  // namespace detail

/// A type has a member `valid()`, or is a number, a flag, an enumeration of one byte, or a struct of up to 6 of these.
template <class T> bool valid_args(const T& t) {
  if constexpr (requires { t.valid(); }) return t.valid();
  else if constexpr (std::is_same_v<T, bool> || std::is_enum_v<T>) {
    static_assert(sizeof(T) == 1);
    unsigned char raw;
    std::memcpy(&raw, &t, 1);
    if constexpr (std::is_enum_v<T>) return detail::is_named<T>(raw, std::make_index_sequence<32>());
    else return raw <= 1;
  } else if constexpr (std::is_arithmetic_v<T>) return true;
  else if constexpr (std::is_empty_v<T>) return true;
  else {
    constexpr auto n = detail::fields_of<T>();
    static_assert(n > 0 && n <= 6);
    if constexpr (n == 1)
      return [](const auto& x) {
        const auto& [a] = x;
        return detail::all_valid(a);
      }(t);
    if constexpr (n == 2)
      return [](const auto& x) {
        const auto& [a, b] = x;
        return detail::all_valid(a, b);
      }(t);
    if constexpr (n == 3)
      return [](const auto& x) {
        const auto& [a, b, c] = x;
        return detail::all_valid(a, b, c);
      }(t);
    if constexpr (n == 4)
      return [](const auto& x) {
        const auto& [a, b, c, d] = x;
        return detail::all_valid(a, b, c, d);
      }(t);
    if constexpr (n == 5)
      return [](const auto& x) {
        const auto& [a, b, c, d, e] = x;
        return detail::all_valid(a, b, c, d, e);
      }(t);
    if constexpr (n == 6)
      return [](const auto& x) {
        const auto& [a, b, c, d, e, f] = x;
        return detail::all_valid(a, b, c, d, e, f);
      }(t);
  }
}

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

/// A name as a number, which is valid only in this process: files contain the names themselves.
class OpName {
 public:
  OpName() = default;
  OpName(std::string_view name);
  OpName(const char* name) : OpName(std::string_view(name)) {}

  /// Whether the name has been used in this process.
  static bool is_known(std::string_view name);

  std::string_view view() const;
  operator std::string_view() const { return view(); }
  bool starts_with(std::string_view s) const { return view().starts_with(s); }
  std::uint16_t number() const { return number_; }
  bool operator==(const OpName&) const = default;
  bool operator==(std::string_view other) const { return view() == other; }
  bool operator==(const char* other) const { return view() == other; }

 private:
  std::uint16_t number_ = 0;
};

class RawRecord;  // check.h

/// Begins a record on a CPU; other threads may continue it. Its operands do not change until it is done.
using StartFn = Ticket (*)(Stream&, const Grad* operands, const void* args);

/// The functions that records of one name run, forward or backward, and those that check records from files.
struct OpFunction {
  RunFn run = nullptr;           // null: not known in this process
  std::uint32_t args_bytes = 0;  // minimum size
  std::uint32_t version = 1;     // version of the meaning of arguments and operands: Op::kVersion
  const OpInfo* info = nullptr;  // of a typed op
  Bound* (*bound)(void* args) = nullptr;
  bool (*valid)(const void* args) = nullptr;
  void (*check)(const RawRecord&) = nullptr;  // instead of what `info` says
  ExchangesFn exchanges = nullptr;            // null: nothing
  StartFn start = nullptr;                    // used instead of `run` on a CPU, on a lane other than `compute`
};
/// Throws Error if the name already stands for another function.
void know(OpName name, bool backward, const OpFunction& f);
void know(const OpInfo& op, std::uint32_t version = 1, void (*check)(const RawRecord&) = nullptr);
OpFunction function_of(OpName name, bool backward);

namespace detail {
template <class Op> constexpr std::uint32_t version_of() {
  if constexpr (requires { Op::kVersion; }) return Op::kVersion;
  else return 1;
}
template <class Op> constexpr auto check_of() {
  void (*check)(const RawRecord&) = nullptr;
  if constexpr (requires { &Op::check_record; }) check = &Op::check_record;
  return check;
}
template <class Raw> OpFunction raw_function() {
  OpFunction f{.run = Raw::run, .version = version_of<Raw>(), .check = check_of<Raw>()};
  if constexpr (requires { Raw::start; }) f.start = Raw::start;
  if constexpr (requires { typename Raw::RecordArgs; }) {
    using Args = typename Raw::RecordArgs;
    f.args_bytes = sizeof(Args);
    if constexpr (requires { Raw::exchanges; }) f.exchanges = Raw::exchanges;
    if constexpr (kBinds<Args>) f.bound = [](void* a) { return bound_in(*static_cast<Args*>(a)); };
  }
  return f;
}
}  // namespace detail

/// Registers ops that a process can record before main() begins, so that programs from files find them; used by
/// record() and emit(). Either a typed op, or a type with a name, a function `run`, optionally `start`, and, to be read
/// from files, check_record(const RawRecord&) and the type of its arguments, RecordArgs.
template <class Op>
inline const bool known_op = [] {
  if constexpr (requires { &Op::infer; }) know(op_info<Op>, detail::version_of<Op>(), detail::check_of<Op>());
  else know(Op::name, false, detail::raw_function<Op>());
  return true;
}();

/// Sets the padding between members to zero, so that equal arguments have equal bytes.
template <class T> void clear_padding([[maybe_unused]] T& t) {
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
  __builtin_clear_padding(&t);
#endif
#endif
}

}  // namespace hpcdl
