#include "hpcdl/ops/conv2d/implicit_gemm_tiles.cuh"

namespace hpcdl::cuda {
namespace {

using Product = ConvProduct<PixelDepths, TermRows>;
constexpr int kMostShares = 264;

template <class E, int kM, int kN, int kWarpsM, int kWarpsN, bool kWholeA, bool kWholeB>
void launch(Stream& s, Product p, const ConvSums& sums) {
  p.tiles_n = tiles_of(p.rows.columns, kN);
  launch_in_shares<E, kM, kN, kWarpsM, kWarpsN, kWholeA, kWholeB>(s, p, sums, kMostShares, "conv2d_backward");
}

}  // namespace

void implicit_gemm_weight(Stream& s, const Conv& c) {
  if (tile_weight(s, c)) return;
  const auto& g = c.shape;
  const int o = narrow_int(g.o), pixels = narrow_int(g.pixels());
  const Product p{.a = {.rows = o, .depths = pixels},
                  .b = {gather_of_x(g)},
                  .a_data = c.dy.data,
                  .b_data = c.x.data,
                  .a_dtype = c.dy.dtype,
                  .b_dtype = c.x.dtype,
                  .rows = dense_rows(o, narrow_int(g.k())),
                  .depth = pixels,
                  .share_depth = pixels,
                  .tiles_n = 1,
                  .out = result_of(c, g.k())};
  const bool a = in_chunks(c.dy, c.compute, g.o), b = in_chunks(c.x, c.compute, g.i);
  const ConvSums sums{.c = c, .rows = g.o, .columns = g.k()};
  visit_dtype(c.compute, [&]<class E>() {
    if (!a) launch<E, 64, 128, 2, 4, false, false>(s, p, sums);
    else if (!b) launch<E, 64, 128, 2, 4, true, false>(s, p, sums);
    else if (g.k() <= 64) launch<E, 64, 64, 2, 4, true, true>(s, p, sums);
    else if (g.o <= 64) launch<E, 64, 128, 2, 4, true, true>(s, p, sums);
    else launch<E, 128, 128, 2, 4, true, true>(s, p, sums);
  });
}

}  // namespace hpcdl::cuda
