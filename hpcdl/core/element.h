#pragma once
// Single elements of tensors of any type, as numbers: for references, checks and tests, not for kernels.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hpcdl/core/error.h"
#include "hpcdl/core/tensor.h"

namespace hpcdl {

/// Calls f.template operator()<T>() with the C++ type of a dtype's elements. Throws UsageError if it has none.
template <class F> decltype(auto) visit_number(DType d, F&& f) {
  switch (d) {
    case DType::f32: return f.template operator()<float>();
    case DType::bf16: return f.template operator()<bf16>();
    case DType::f16: return f.template operator()<f16>();
    case DType::f64: return f.template operator()<double>();
    case DType::i64: return f.template operator()<std::int64_t>();
    case DType::i32: return f.template operator()<std::int32_t>();
    case DType::i16: return f.template operator()<std::int16_t>();
    case DType::i8: return f.template operator()<std::int8_t>();
    case DType::u64: return f.template operator()<std::uint64_t>();
    case DType::u32: return f.template operator()<std::uint32_t>();
    case DType::u16: return f.template operator()<std::uint16_t>();
    case DType::u8: return f.template operator()<std::uint8_t>();
    default: fail_usage("dtype", "{} is not a type of numbers: use fp32, bf16, fp16, fp64 or integers", dtype_name(d));
  }
}

/// x as an element of type T.
template <class T> T to_element(double x) {
  if constexpr (std::is_arithmetic_v<T>) return static_cast<T>(x);
  else return T(static_cast<float>(x));
}

/// Element `i` of those of type `d` at `data`, which need not be aligned.
inline double element(const void* data, DType d, std::int64_t i) {
  return visit_number(d, [&]<class T>() {
    T v{};
    std::memcpy(static_cast<void*>(&v), static_cast<const std::byte*>(data) + i * dtype_bytes(d), sizeof v);
    return static_cast<double>(v);
  });
}
inline void set_element(void* data, DType d, std::int64_t i, double x) {
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
  return visit_number(d, [&]<class T>() { return static_cast<double>(to_element<T>(x)); });
}

}  // namespace hpcdl
