#include "hpcdl/core/convert.h"

#include <algorithm>
#include <cmath>

#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"

namespace hpcdl {
namespace {

template <class F> void visit_float(DType d, F&& f) {
  switch (d) {
#define HPCDL_CASE(dtype, name, array_name, type, floating)       \
  case DType::dtype:                                              \
    if constexpr (floating) return f.template operator()<type>(); \
    break;
    HPCDL_DTYPES(HPCDL_CASE)
#undef HPCDL_CASE
    default: break;
  }
  fail("convert", "expected a floating-point type, got {}", dtype_name(d));
}

/// Element `i`, which need not be aligned: tensors in files are not.
template <class T> T load(const void* p, std::int64_t i) {
  T v;
  __builtin_memcpy(&v, static_cast<const char*>(p) + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return v;
}

}  // namespace

void convert_elements(Tensor dst, View src) {
  require(dst.shape() == src.shape() && dst.is_contiguous() && src.is_contiguous(), "convert",
          "both tensors must be contiguous and have the same shape, got {} and {}", to_string(dst.spec()),
          to_string(src.spec()));
  visit_float(dst.dtype(), [&]<class To>() {
    visit_float(src.dtype(), [&]<class From>() {
      // Always whole arrays, apart from both tensors: only such loops are vectorised.
      constexpr std::int64_t kSome = 256;
      From from[kSome] = {};
      To to[kSome] = {};
      for (std::int64_t i = 0; i < dst.size(); i += kSome) {
        const auto count = std::min(kSome, dst.size() - i);
        __builtin_memcpy(from, src.ptr<char>() + i * static_cast<std::int64_t>(sizeof(From)),
                         static_cast<std::size_t>(count) * sizeof(From));
        for (std::int64_t k = 0; k < kSome; ++k) to[k] = static_cast<To>(static_cast<float>(from[k]));
        __builtin_memcpy(dst.ptr<char>() + i * static_cast<std::int64_t>(sizeof(To)), to,
                         static_cast<std::size_t>(count) * sizeof(To));
      }
    });
  });
}

std::int64_t count_non_finite(View x) {
  require(x.is_contiguous(), "convert", "expected a contiguous tensor, got {}", to_string(x.spec()));
  std::int64_t count = 0;
  visit_float(x.dtype(), [&]<class T>() {
    for (std::int64_t i = 0; i < x.size(); ++i) count += !std::isfinite(static_cast<double>(load<T>(x.data(), i)));
  });
  return count;
}

}  // namespace hpcdl
