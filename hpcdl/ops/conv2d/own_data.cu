#include "hpcdl/ops/conv2d/own_kernel.h"

namespace hpcdl::cuda {
namespace {

using Product = ConvProduct<PixelRows, FilterColumns>;

constexpr int kMostShares = 8;

/// Of the pixels of one class alone there are no shares: they lie apart.
template <class E, int kN, int kWarpsM, int kWarpsN, bool kWhole> void launch(Stream& s, const Conv& c, Product p) {
  p.tiles_n = tiles_of(p.rows.columns, kN);
  launch_in_shares<E, 128, kN, kWarpsM, kWarpsN, kWhole, kWhole>(s, p, {.c = c, .rows = p.rows.rows, .columns = p.rows.columns, .from_columns = p.rows.columns},
                                                                c.shape.stride == 1 ? kMostShares : 1, "conv2d_backward");
}

void one_class(Stream& s, const Conv& c, const DataClass& d) {
  const Product p{.a = {d.dy}, .b = d.w, .a_data = c.dy.data, .b_data = c.w.data, .a_dtype = c.dy.dtype, .b_dtype = c.w.dtype, .rows = d.dx,
                  .depth = d.w.depths, .share_depth = d.w.depths, .tiles_n = 1, .out = result_of(c, c.shape.i)};
  if (p.rows.rows == 0 || (p.depth == 0 && c.accumulate)) return;
  const bool whole = in_chunks(c.dy, c.compute, c.shape.o) && in_chunks(c.w, c.compute, c.shape.i);
  visit_dtype(c.compute, [&]<class E>() {
    if (!whole) launch<E, 64, 4, 2, false>(s, c, p);
    else if (c.shape.i <= 64) launch<E, 64, 4, 2, true>(s, c, p);
    else launch<E, 128, 2, 4, true>(s, c, p);
  });
}

}  // namespace

void own_data(Stream& s, const Conv& c) {
  for (std::int64_t row = 0; row < c.shape.stride; ++row)
    for (std::int64_t col = 0; col < c.shape.stride; ++col) one_class(s, c, data_class(c.shape, row, col));
}

}  // namespace hpcdl::cuda
