#include "hpcdl/ops/fp8_quantize/fp8_quantize.h"

#include <atomic>
#include <cmath>

#include "hpcdl/ops/rows.h"
#include "hpcdl/simd/vec.h"

namespace hpcdl::cpu {
namespace {

constexpr std::int64_t kBlock = Fp8Quantize::kBlock;

/// x as q sees it: element (r, c) of its rows and columns.
template <class T> struct Source {
  const T* data;
  std::int64_t row, col;  // strides
  float operator()(std::int64_t r, std::int64_t c) const { return static_cast<float>(data[r * row + c * col]); }
};

/// A rectangle of q.
struct Part {
  std::int64_t r0, r1, c0, c1;
};

template <class T> float largest(const Source<T>& x, const Part& p) {
  float most = 0;
  for (std::int64_t r = p.r0; r < p.r1; ++r)
    for (std::int64_t c = p.c0; c < p.c1; ++c) most = std::fmax(most, std::fabs(x(r, c)));
  return most;
}
template <class T, class F> void round_part(F* q, std::int64_t ld, const Source<T>& x, const Part& p, float scale) {
  const float inverse = 1 / scale;
  for (std::int64_t r = p.r0; r < p.r1; ++r)
    for (std::int64_t c = p.c0; c < p.c1; ++c) q[r * ld + c] = to_f8<F>(x(r, c) * inverse);
}

template <class T, class F>
void quantize(Pool& pool, Tensor q, Tensor scale, View x, View amax, Tensor measured, const Fp8Quantize::Args& a) {
  const Source<T> from =
      a.transposed ? Source<T>{x.ptr<T>(), 1, x.row_stride()} : Source<T>{x.ptr<T>(), x.row_stride(), 1};
  const std::int64_t rows = q.rows(), cols = q.cols(), ld = q.row_stride();
  float* const scales = scale.ptr<float>();
  F* const to = q.ptr<F>();
  const bool by_tensor = a.scaling == Fp8Scaling::tensor;
  if (by_tensor) {
    float* const most = measured.ptr<float>();
    if (!amax) {
      *most = 0;
      for_rows(pool, rows, cols, [&](std::int64_t begin, std::int64_t end) {
        const float here = largest(from, {begin, end, 0, cols});
        const std::atomic_ref shared(*most);
        float seen = shared.load();
        while (seen < here && !shared.compare_exchange_weak(seen, here)) {}
      });
    }
    scales[0] = f8_scale<F>(amax ? amax.ptr<float>()[0] : *most);
  }
  const std::int64_t tall = a.scaling == Fp8Scaling::blocks ? kBlock : 1,
                     wide = a.scaling == Fp8Scaling::tensor || a.scaling == Fp8Scaling::row ? cols : kBlock,
                     across = wide > 0 ? (cols + wide - 1) / wide : 0;
  for_rows(pool, (rows + tall - 1) / tall, cols * tall, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      for (std::int64_t j = 0; j < across; ++j) {
        const Part part{i * tall, i * tall + tall < rows ? i * tall + tall : rows, j * wide,
                        j * wide + wide < cols ? j * wide + wide : cols};
        float& own = scales[by_tensor ? 0 : i * across + j];
        if (!by_tensor) own = f8_scale<F>(largest(from, part));
        round_part(to, ld, from, part, own);
      }
  });
}

}  // namespace

template <class Isa>
void fp8_quantize(Isa, Pool& pool, Tensor q, Tensor scale, View x, View amax, Tensor measured,
                  const Fp8Quantize::Args& a) {
  visit_dtype(x.dtype(), [&]<class T>() {
    visit_f8(a.to, [&]<class F>() { quantize<T, F>(pool, q, scale, x, amax, measured, a); });
  });
}

template void fp8_quantize(simd::Isa, Pool&, Tensor, Tensor, View, View, Tensor, const Fp8Quantize::Args&);

}  // namespace hpcdl::cpu
