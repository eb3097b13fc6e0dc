#pragma once
// Checks arguments that may have come from a file: every flag and every enumeration must have one of its values.

#include <cstring>
#include <string_view>
#include <type_traits>
#include <utility>

namespace hpcdl {

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

}  // namespace hpcdl
