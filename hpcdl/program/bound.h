#pragma once
// What records use besides tensors and a program cannot hold: groups of ranks, and the objects that keep track of them.

#include <algorithm>
#include <string_view>
#include <type_traits>

namespace hpcdl {

/// An object of the process that the arguments of a record name. In a program `at` is null; an Instance has
/// arguments of its own, where it is set.
struct Bound {
  char name[24] = {};
  const void* at = nullptr;

  Bound() = default;
  Bound(std::string_view called, const void* where) : at(where) {
    called.copy(name, std::min(called.size(), sizeof name - 1));
  }
};

/// The Bound of a record's arguments: their base, or their member `peers`; null if they have none.
template <class Args> Bound* bound_in(Args& args) {
  if constexpr (std::is_base_of_v<Bound, Args>) return &args;
  else if constexpr (requires { requires std::is_base_of_v<Bound, decltype(args.peers)>; }) return &args.peers;
  else return nullptr;
}

}  // namespace hpcdl
