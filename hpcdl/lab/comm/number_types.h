#pragma once
// From a dtype to the C++ type of its elements, for those that can be summed.

#include "hpcdl/core/dtype.h"
#include "hpcdl/core/error.h"

namespace hpcdl::lab {

/// f(T{}) with T of `d`. Throws UsageError for a dtype that nobody reduces.
template <class F> void with_number(DType d, F&& f) {
  switch (d) {
    case DType::f32: return f(float{});
    case DType::bf16: return f(bf16{});
    case DType::f16: return f(f16{});
    case DType::f64: return f(double{});
    case DType::i64: return f(std::int64_t{});
    case DType::i32: return f(std::int32_t{});
    case DType::i16: return f(std::int16_t{});
    case DType::i8: return f(std::int8_t{});
    case DType::u64: return f(std::uint64_t{});
    case DType::u32: return f(std::uint32_t{});
    case DType::u16: return f(std::uint16_t{});
    case DType::u8: return f(std::uint8_t{});
    default: fail_usage("bench", "{} cannot be summed: take fp32, bf16, fp16, fp64 or integers", dtype_name(d));
  }
}

}  // namespace hpcdl::lab
