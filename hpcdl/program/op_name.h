#pragma once
// Ops by name: what a record holds, and how a process finds the functions that it runs.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "hpcdl/core/ticket.h"
#include "hpcdl/program/op_info.h"

namespace hpcdl {

/// A name as one number, which means something in this process alone: files hold the names themselves.
class OpName {
 public:
  OpName() = default;
  OpName(std::string_view name);
  OpName(const char* name) : OpName(std::string_view(name)) {}

  /// Whether it has been used in this process.
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

/// Begins a record on a CPU, which other threads may go on with. Its operands stay as they are until then.
using StartFn = Ticket (*)(Stream&, const Grad* operands, const void* args);

/// What records of one name run, forward or backward, and what those from files are checked with.
struct OpFunction {
  RunFn run = nullptr;           // null: not known in this process
  std::uint32_t args_bytes = 0;  // at least
  std::uint32_t version = 1;     // of what its arguments and operands mean: Op::kVersion
  const OpInfo* info = nullptr;  // of a typed op
  Bound* (*bound)(void* args) = nullptr;
  bool (*valid)(const void* args) = nullptr;
  void (*check)(const RawRecord&) = nullptr;  // instead of what `info` says
  ExchangesFn exchanges = nullptr;            // null: nothing
  StartFn start = nullptr;                    // instead of `run`, on a CPU and on another lane than `compute`
};
/// Error where the name stands for another function.
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

/// Ops that a process can record are known before main() begins, so that programs from files find them: used by
/// record() and emit(). An op, or what has a name, a function `run`, perhaps `start`, and, to be read from
/// files, check_record(const RawRecord&) and the type of its arguments, RecordArgs.
template <class Op>
inline const bool known_op = [] {
  if constexpr (requires { &Op::infer; }) know(op_info<Op>, detail::version_of<Op>(), detail::check_of<Op>());
  else know(Op::name, false, detail::raw_function<Op>());
  return true;
}();

/// Zeros between the members, so that equal arguments have equal bytes.
template <class T> void clear_padding([[maybe_unused]] T& t) {
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
  __builtin_clear_padding(&t);
#endif
#endif
}

}  // namespace hpcdl
