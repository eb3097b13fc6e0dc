#pragma once
// Element types. The names are those of safetensors, so that a dtype can be read from and written to a file as is.
// This header is included by kernels that are compiled per instruction set: keep it free of heavy includes.

#include <bit>
#include <cstdint>
#include <string_view>

namespace hpcdl {

/// Storage type of bfloat16: the upper half of an IEEE-754 binary32. Arithmetic happens in float.
struct bf16 {
  std::uint16_t bits = 0;

  bf16() = default;
  /// Rounds to nearest, ties to even; NaN stays NaN (quiet).
  explicit constexpr bf16(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) bits = static_cast<std::uint16_t>((u >> 16) | 0x40u);
    else bits = static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  constexpr operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
};
static_assert(sizeof(bf16) == 2);

/// Storage type of IEEE-754 binary16. Rounds to nearest, ties to even; handles subnormals and NaN.
struct f16 {
  std::uint16_t bits = 0;

  f16() = default;
  explicit constexpr f16(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (u >> 16) & 0x8000u, mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u) bits = static_cast<std::uint16_t>(sign | 0x7e00u);
    else if (mag >= 0x477ff000u) bits = static_cast<std::uint16_t>(sign | 0x7c00u);  // >= 65520 rounds to infinity
    else if (mag < 0x38800000u) {  // below 2^-14: let the float adder round at the subnormal's ulp
      const float shifted = std::bit_cast<float>(mag) + 0.5f;
      bits = static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
    } else {
      const std::uint32_t rounded = mag - 0x38000000u + 0xfffu + ((mag >> 13) & 1u);
      bits = static_cast<std::uint16_t>(sign | (rounded >> 13));
    }
  }
  constexpr operator float() const {
    const std::uint32_t sign = std::uint32_t(bits & 0x8000u) << 16, exp = (bits >> 10) & 31u, man = bits & 0x3ffu;
    if (exp == 31) return std::bit_cast<float>(sign | 0x7f800000u | (man << 13));
    if (exp == 0) {
      const float mag = static_cast<float>(man) * 0x1p-24f;
      return sign ? -mag : mag;
    }
    return std::bit_cast<float>(sign | ((exp + 112u) << 23) | (man << 13));
  }
};
static_assert(sizeof(f16) == 2);

/// Storage types of 8-bit floats (Micikevicius et al., "FP8 formats for deep learning", 2022) and of the powers of two
/// that scale blocks of them (OCP Microscaling), which no kernel reads yet. Values: core/f8.h.
struct f8_e4m3 {
  std::uint8_t bits = 0;
};
struct f8_e5m2 {
  std::uint8_t bits = 0;
};
struct f8_e8m0 {
  std::uint8_t bits = 0;
};

/// The list of all dtypes: the enumerator, its name in safetensors files, its name in NumPy and PyTorch, the C++ type
/// of an element, and whether kernels compute with it as with a floating-point number.
#define HPCDL_DTYPES(ROW)                                         \
  ROW(f32, "F32", "float32", float, true)                         \
  ROW(bf16, "BF16", "bfloat16", hpcdl::bf16, true)                \
  ROW(f16, "F16", "float16", hpcdl::f16, true)                    \
  ROW(f64, "F64", "float64", double, true)                        \
  ROW(i64, "I64", "int64", std::int64_t, false)                   \
  ROW(i32, "I32", "int32", std::int32_t, false)                   \
  ROW(i16, "I16", "int16", std::int16_t, false)                   \
  ROW(i8, "I8", "int8", std::int8_t, false)                       \
  ROW(u64, "U64", "uint64", std::uint64_t, false)                 \
  ROW(u32, "U32", "uint32", std::uint32_t, false)                 \
  ROW(u16, "U16", "uint16", std::uint16_t, false)                 \
  ROW(u8, "U8", "uint8", std::uint8_t, false)                     \
  ROW(boolean, "BOOL", "bool", bool, false)                       \
  ROW(f8_e4m3, "F8_E4M3", "float8_e4m3fn", hpcdl::f8_e4m3, false) \
  ROW(f8_e5m2, "F8_E5M2", "float8_e5m2", hpcdl::f8_e5m2, false)   \
  ROW(f8_e8m0, "F8_E8M0", "float8_e8m0fnu", hpcdl::f8_e8m0, false)

enum class DType : std::uint8_t {
  none,
#define HPCDL_ENUMERATOR(dtype, name, array_name, type, floating) dtype,
  HPCDL_DTYPES(HPCDL_ENUMERATOR)
#undef HPCDL_ENUMERATOR
};

struct DTypeRow {
  std::string_view name;   // of safetensors
  const char* array_name;  // of NumPy and PyTorch
  int bytes;               // of an element
  bool floating;
};
/// A switch that is always inlined, and no table: objects of several instruction sets may share no symbol
/// (tests/symbols).
[[gnu::always_inline]] constexpr DTypeRow dtype_row(DType d) {
  switch (d) {
#define HPCDL_ROW(dtype, name, array_name, type, floating) \
  case DType::dtype: return {name, array_name, sizeof(type), floating};
    HPCDL_DTYPES(HPCDL_ROW)
#undef HPCDL_ROW
    default: return {"NONE", "none", 0, false};
  }
}
#define HPCDL_ONE(...) +1
inline constexpr int kDTypeCount = 1 HPCDL_DTYPES(HPCDL_ONE);  // with `none`
#undef HPCDL_ONE

template <class T> inline constexpr DType dtype_of = DType::none;
#define HPCDL_TYPE(dtype, name, array_name, type, floating) \
  template <> inline constexpr DType dtype_of<type> = DType::dtype;
HPCDL_DTYPES(HPCDL_TYPE)
#undef HPCDL_TYPE

/// Bytes of one element; 0 for `none`.
[[gnu::always_inline]] constexpr int dtype_bytes(DType d) { return dtype_row(d).bytes; }

/// The safetensors name, e.g. "BF16".
[[gnu::always_inline]] constexpr std::string_view dtype_name(DType d) { return dtype_row(d).name; }

/// The name in NumPy and PyTorch, e.g. "bfloat16".
constexpr const char* array_name(DType d) { return dtype_row(d).array_name; }

/// Inverse of dtype_name; `none` when the name is unknown.
constexpr DType dtype_from_name(std::string_view name) {
  for (int i = 1; i < kDTypeCount; ++i)
    if (dtype_row(static_cast<DType>(i)).name == name) return static_cast<DType>(i);
  return DType::none;
}

[[gnu::always_inline]] constexpr bool is_float(DType d) { return dtype_row(d).floating; }

/// Throws Error: no kernel computes with it. infer() rejects such a dtype before a kernel is reached.
[[noreturn]] void fail_dtype(DType d);

/// Calls f.template operator()<T>() with T = float, bf16 or f16, the types that kernels compute with. The dtype of an
/// absent operand is `none`, and its T is float.
template <class F> decltype(auto) visit_dtype(DType d, F&& f) {
  if (d == DType::f32 || d == DType::none) return f.template operator()<float>();
  if (d == DType::bf16) return f.template operator()<bf16>();
  if (d == DType::f16) return f.template operator()<f16>();
  fail_dtype(d);
}

}  // namespace hpcdl
