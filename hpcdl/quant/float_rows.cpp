#include "hpcdl/quant/float_rows.h"

#include <cmath>

#include "hpcdl/core/convert.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"

namespace hpcdl::quant {

FloatRows::FloatRows(const View& w, bool transposed, std::string_view name)
    : w_(w), transposed_(transposed), name_(name) {
  require(w.rank() == 2 && (w.dtype() == DType::f32 || w.dtype() == DType::bf16 || w.dtype() == DType::f16), "quant",
          "{}: expected a matrix of F32, BF16 or F16, got {}", name, to_string(w.spec()));
  require(w.rows_are_uniform(), "quant", "{}: rows must be dense", name);
  n_ = w[transposed ? 1 : 0], k_ = w[transposed ? 0 : 1];
}

std::int64_t FloatRows::read(std::int64_t r, float* to) const {
  visit_dtype(w_.dtype(), [&]<class T>() {
    const T* from = w_.ptr<T>() + (transposed_ ? r : r * w_.row_stride());
    const std::int64_t step = transposed_ ? w_.row_stride() : 1;
    for (std::int64_t i = 0; i < k_; ++i) to[i] = static_cast<float>(from[i * step]);
  });
  for (std::int64_t i = 0; i < k_; ++i)
    if (!std::isfinite(to[i])) return i;
  return -1;
}

void FloatRows::refuse(std::int64_t row, std::int64_t column) const {
  fail("quant", "{}: weight [{}, {}] is not a finite number: damaged file, or training that diverged", name_,
       transposed_ ? column : row, transposed_ ? row : column);
}

}  // namespace hpcdl::quant
