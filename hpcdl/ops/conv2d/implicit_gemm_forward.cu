#include "hpcdl/ops/conv2d/implicit_gemm_tiles.cuh"

namespace hpcdl::cuda {
namespace {

using Product = ConvProduct<PixelRows, FilterRows>;

constexpr int kMostShares = 8;

template <class E, int kN, int kWarpsM, int kWarpsN, bool kWhole> void launch(Stream& s, const Conv& c, Product p) {
  p.tiles_n = tiles_of(p.rows.columns, kN);
  launch_in_shares<E, 128, kN, kWarpsM, kWarpsN, kWhole, kWhole>(
      s, p, {.c = c, .rows = p.rows.rows, .columns = p.rows.columns}, kMostShares, "conv2d");
}

}  // namespace

void implicit_gemm_forward(Stream& s, const Conv& c) {
  const auto& g = c.shape;
  const int k = narrow_int(g.k());
  const Product p{.a = {gather_of_x(g)},
                  .b = {.rows = narrow_int(g.o), .depths = k},
                  .a_data = c.x.data,
                  .b_data = c.w.data,
                  .a_dtype = c.x.dtype,
                  .b_dtype = c.w.dtype,
                  .rows = dense_rows(narrow_int(g.pixels()), narrow_int(g.o)),
                  .depth = k,
                  .share_depth = k,
                  .tiles_n = 1,
                  .out = result_of(c, g.o)};
  if (p.rows.rows == 0) return;
  const bool whole = in_chunks(c.x, c.compute, g.i) && in_chunks(c.w, c.compute, g.i);
  visit_dtype(c.compute, [&]<class E>() {
    if (!whole) launch<E, 64, 4, 2, false>(s, c, p);
    else if (g.o <= 64) launch<E, 64, 4, 2, true>(s, c, p);
    else launch<E, 128, 2, 4, true>(s, c, p);
  });
}

}  // namespace hpcdl::cuda
