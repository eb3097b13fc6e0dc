#include "hpcdl/ops/fill/fill.h"

#include "hpcdl/ops/rows.h"
#include "hpcdl/simd/vec.h"

namespace hpcdl::cpu {

template <class Isa> void fill(Isa, Pool& pool, Tensor y, float value) {
  using V = simd::Vec<Isa>;
  visit_dtype(y.dtype(), [&]<class T>() {
    for_row_chunks(pool, y.rows(), y.cols(), [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
      T* p = y.ptr<T>() + row * y.row_stride();
      for (std::int64_t i = begin; i < end; i += V::N)
        V(value).store(p + i, static_cast<int>(end - i < V::N ? end - i : V::N));
    });
  });
}

template <class Isa> void add_into(Isa, Pool& pool, Tensor y, View x) {
  using V = simd::Vec<Isa>;
  visit_dtype(y.dtype(), [&]<class T>() {
    for_row_chunks(pool, y.rows(), y.cols(), [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
      T* p = y.ptr<T>() + row * y.row_stride();
      const T* q = x.ptr<T>() + row * x.row_stride();
      for (std::int64_t i = begin; i < end; i += V::N) {
        const int n = static_cast<int>(end - i < V::N ? end - i : V::N);
        (V::load(p + i, n) + V::load(q + i, n)).store(p + i, n);
      }
    });
  });
}

template void fill(simd::Isa, Pool&, Tensor, float);
template void add_into(simd::Isa, Pool&, Tensor, View);

}  // namespace hpcdl::cpu
