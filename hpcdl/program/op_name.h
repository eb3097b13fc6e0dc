#pragma once
// Ops by name: what a record holds, and how a process finds the functions that it runs.

#include <cstddef>
#include <cstdint>
#include <string_view>

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

/// What records of one name run, forward or backward.
struct OpFunction {
  RunFn run = nullptr;           // null: not known in this process
  std::uint32_t args_bytes = 0;  // at least
  std::uint32_t version = 1;     // of what its arguments and operands mean: Op::kVersion
};
/// Error where the name stands for another function.
void know(OpName name, bool backward, const OpFunction& f);
void know(const OpInfo& op, std::uint32_t version = 1);
OpFunction function_of(OpName name, bool backward);

namespace detail {
template <class Op> constexpr std::uint32_t version_of() {
  if constexpr (requires { Op::kVersion; }) return Op::kVersion;
  else return 1;
}
}  // namespace detail

/// Ops that a process can record are known before main() begins, so that programs from files find them: used by
/// record() and emit(). An op, or what has a name and a function `run`.
template <class Op>
inline const bool known_op = [] {
  if constexpr (requires { &Op::infer; }) know(op_info<Op>, detail::version_of<Op>());
  else know(Op::name, false, {Op::run, 0, detail::version_of<Op>()});
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
