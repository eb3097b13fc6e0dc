#pragma once
// Single elements of tensors of any type, as numbers: for references, checks and tests, not for kernels.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hpcdl/core/error.h"
#include "hpcdl/core/f8.h"
#include "hpcdl/tensor.h"

namespace hpcdl {

/// Whether elements of type T convert to numbers.
template <class T> inline constexpr bool is_number_type = std::is_convertible_v<T, float> && !std::is_same_v<T, bool>;
constexpr bool is_number(DType d) {
  switch (d) {
#define HPCDL_CASE(dtype, name, array_name, type, floating) \
  case DType::dtype: return is_number_type<type>;
    HPCDL_DTYPES(HPCDL_CASE)
#undef HPCDL_CASE
    default: return false;
  }
}

/// Calls f.template operator()<T>() with the C++ type of a dtype's elements. Throws UsageError if they are no numbers.
template <class F> decltype(auto) visit_number(DType d, F&& f) {
  switch (d) {
#define HPCDL_CASE(dtype, name, array_name, type, floating)                   \
  case DType::dtype:                                                          \
    if constexpr (is_number_type<type>) return f.template operator()<type>(); \
    break;
    HPCDL_DTYPES(HPCDL_CASE)
#undef HPCDL_CASE
    default: break;
  }
  fail_usage("dtype", "{} is not a type of numbers: use fp32, bf16, fp16, fp64 or integers", dtype_name(d));
}

/// x as an element of type T.
template <class T> T to_element(double x) {
  if constexpr (std::is_arithmetic_v<T>) return static_cast<T>(x);
  else return T(static_cast<float>(x));
}

/// Element `i` of those of type `d` at `data`, which need not be aligned. Here and below, 8-bit floats are numbers, too.
inline double element(const void* data, DType d, std::int64_t i) {
  if (is_f8_dtype(d))
    return visit_f8(d, [&]<class F>() { return static_cast<double>(from_f8(static_cast<const F*>(data)[i])); });
  return visit_number(d, [&]<class T>() {
    T v{};
    std::memcpy(static_cast<void*>(&v), static_cast<const std::byte*>(data) + i * dtype_bytes(d), sizeof v);
    return static_cast<double>(v);
  });
}
inline void set_element(void* data, DType d, std::int64_t i, double x) {
  if (is_f8_dtype(d))
    return visit_f8(d, [&]<class F>() { static_cast<F*>(data)[i] = to_f8<F>(static_cast<float>(x)); });
  visit_number(d, [&]<class T>() {
    const T v = to_element<T>(x);
    std::memcpy(static_cast<std::byte*>(data) + i * dtype_bytes(d), &v, sizeof v);
  });
}
/// An element of a dense tensor in host memory.
inline double element(const View& t, std::int64_t i) { return element(t.data(), t.dtype(), i); }
inline void set_element(const Tensor& t, std::int64_t i, double x) { set_element(t.data(), t.dtype(), i, x); }

/// x rounded to type `d`.
inline double rounded_to(DType d, double x) {
  if (is_f8_dtype(d))
    return visit_f8(d, [&]<class F>() { return static_cast<double>(from_f8(to_f8<F>(static_cast<float>(x)))); });
  return visit_number(d, [&]<class T>() { return static_cast<double>(to_element<T>(x)); });
}

}  // namespace hpcdl
