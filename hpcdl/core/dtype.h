#pragma once
// Element types. The names are those of safetensors, so that a dtype can be read from and written to a file as is.
// This header is included by kernels that are compiled per instruction set: keep it free of heavy includes.

#include <bit>
#include <cstdint>
#include <string_view>

namespace hpcdl {

enum class DType : std::uint8_t {
  none,
  f32,
  bf16,
  f16,
  f64,
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8,
  boolean,
  f8_e4m3,
  f8_e5m2,
  f8_e8m0
};

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

template <class T> inline constexpr DType dtype_of = DType::none;
template <> inline constexpr DType dtype_of<float> = DType::f32;
template <> inline constexpr DType dtype_of<double> = DType::f64;
template <> inline constexpr DType dtype_of<bf16> = DType::bf16;
template <> inline constexpr DType dtype_of<f16> = DType::f16;
template <> inline constexpr DType dtype_of<std::int64_t> = DType::i64;
template <> inline constexpr DType dtype_of<std::int32_t> = DType::i32;
template <> inline constexpr DType dtype_of<std::int16_t> = DType::i16;
template <> inline constexpr DType dtype_of<std::int8_t> = DType::i8;
template <> inline constexpr DType dtype_of<std::uint64_t> = DType::u64;
template <> inline constexpr DType dtype_of<std::uint32_t> = DType::u32;
template <> inline constexpr DType dtype_of<std::uint16_t> = DType::u16;
template <> inline constexpr DType dtype_of<std::uint8_t> = DType::u8;

/// Bytes of one element; 0 for `none`.
constexpr int dtype_bytes(DType d) {
  switch (d) {
    case DType::none: return 0;
    case DType::f64:
    case DType::i64:
    case DType::u64: return 8;
    case DType::f32:
    case DType::i32:
    case DType::u32: return 4;
    case DType::bf16:
    case DType::f16:
    case DType::i16:
    case DType::u16: return 2;
    default: return 1;
  }
}

/// The safetensors name, e.g. "BF16".
constexpr std::string_view dtype_name(DType d) {
  constexpr std::string_view names[] = {"NONE", "F32", "BF16", "F16", "F64",  "I64",     "I32",     "I16",    "I8",
                                        "U64",  "U32", "U16",  "U8",  "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"};
  return names[static_cast<int>(d)];
}

/// Inverse of dtype_name; `none` when the name is unknown.
constexpr DType dtype_from_name(std::string_view name) {
  for (int i = 1; i <= static_cast<int>(DType::f8_e8m0); ++i)
    if (dtype_name(static_cast<DType>(i)) == name) return static_cast<DType>(i);
  return DType::none;
}

constexpr bool is_float(DType d) { return d == DType::f32 || d == DType::bf16 || d == DType::f16 || d == DType::f64; }

/// Calls f.template operator()<T>() with T = float, bf16 or f16, the types kernels compute on. infer() has rejected
/// every other dtype before a kernel is reached.
template <class F> decltype(auto) visit_dtype(DType d, F&& f) {
  if (d == DType::f16) return f.template operator()<f16>();
  if (d == DType::bf16) return f.template operator()<bf16>();
  return f.template operator()<float>();
}

}  // namespace hpcdl
