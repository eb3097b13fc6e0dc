#pragma once
// Ops by name: how a record refers to an op, and how a process finds the functions to run.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "hpcdl/core/ticket.h"
#include "hpcdl/program/op_info.h"

namespace hpcdl {

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
