#include "hpcdl/ops/adapter_rows/adapter_rows.h"

#include <type_traits>

#include "hpcdl/ops/adapter_rows/rows.cuh"
#include "hpcdl/ops/adapter_rows/tiles.cuh"

namespace hpcdl::cuda {

void adapter_rows(Stream& s, Tensor y, View base, View x, View chosen, View a, View b, View ends, View scales,
                  View shifts, Tensor low) {
  // H200, us, bf16, 4096 x 14336, rank 16, of 8 adapters (rows | tiles): 256 rows of 256 texts 60 | 182, of 4 texts 59 | 36;
  // 2048 rows of 32 texts 457 | 193. More rows than a pass has texts are prompts.
  constexpr int kMostTexts = 256;
  if (y.size() == 0) return;
  const AdapterOperands p{.y = y.data(),
                          .low = low.data(),
                          .base = base.data(),
                          .x = x.data(),
                          .a = a.data(),
                          .b = b.data(),
                          .chosen = chosen.ptr<std::int32_t>(),
                          .ends = ends.ptr<std::int32_t>(),
                          .scales = scales.ptr<float>(),
                          .shifts = shifts.ptr<float>(),
                          .y_stride = y.row_stride(),
                          .base_stride = base.row_stride(),
                          .x_stride = x.row_stride(),
                          .rows = static_cast<int>(y.rows()),
                          .inputs = static_cast<int>(x.cols()),
                          .outputs = static_cast<int>(y.cols()),
                          .ranks = static_cast<int>(a[0]),
                          .adapters = static_cast<int>(ends.size())};
  visit_dtype(y.dtype(), [&]<class T>() {
    visit_dtype(a.dtype(), [&]<class W>() {
      if constexpr (std::is_same_v<T, W> && sizeof(T) == 2)
        if (p.rows > kMostTexts && !s.numerics().row_invariant && adapter_tile::fits<T>(p))
          return adapter_tile::run<T>(s, p);
      adapter_row::run<T, W>(s, p);
    });
  });
}

}  // namespace hpcdl::cuda
