#pragma once
// Objects that records use besides tensors and that a program cannot hold: groups of ranks, and the objects that track
// them.

#include <algorithm>
#include <string_view>
#include <type_traits>

namespace hpcdl {

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

}  // namespace hpcdl
