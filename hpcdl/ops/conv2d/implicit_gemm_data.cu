#include <vector>

#include "hpcdl/ops/conv2d/implicit_gemm_tiles.cuh"

namespace hpcdl::cuda {
namespace {

using Product = ConvProduct<PixelRows, FilterColumns>;

constexpr int kMostShares = 16;

/// One product per class of pixels, and the pixels of all classes.
struct Classes {
  std::vector<Product> products;
  ConvSums all;
  int depth = 0;  // the largest depth
};

/// The classes are interleaved, so a share of the sums is all of dx: all classes have the same number of shares, some
/// of which may be empty.
template <class E, int kN, int kWarpsM, int kWarpsN, bool kWhole> void launch(Stream& s, const Classes& c) {
  constexpr int kM = 128;
  std::int64_t tiles = 0;
  for (const auto& p : c.products)
    tiles = std::max(tiles, (std::int64_t{p.rows.rows} + kM - 1) / kM * tiles_of(p.rows.columns, kN));
  const ConvShares shares = shares_that_fill<E>(s, tiles, c.depth, c.all, kMostShares);
  for (Product p : c.products) {
    p.tiles_n = tiles_of(p.rows.columns, kN);
    p.share_depth = tiles_of(tiles_of(p.depth, kConvDepth<E>), shares.count) * kConvDepth<E>;
    if (p.depth == 0 && p.out.accumulate && shares.count == 1) continue;
    if (shares.count > 1) p.out = share_result(s, c.all);
    launch_conv<E, kM, kN, kWarpsM, kWarpsN, kWhole, kWhole>(s, p, shares.count, "conv2d_backward");
  }
  if (shares.count > 1) add_conv_shares(s, c.all, shares.count);
}

Classes classes_of(const Conv& c) {
  const auto& g = c.shape;
  Classes all{.products = {}, .all = {.c = c, .rows = g.n * g.h * g.w, .columns = g.i}};
  for (std::int64_t row = 0; row < g.stride; ++row)
    for (std::int64_t col = 0; col < g.stride; ++col) {
      const DataClass d = data_class(g, row, col);
      if (d.dx.rows == 0) continue;
      all.products.push_back({.a = {d.dy},
                              .b = d.w,
                              .a_data = c.dy.data,
                              .b_data = c.w.data,
                              .a_dtype = c.dy.dtype,
                              .b_dtype = c.w.dtype,
                              .rows = d.dx,
                              .depth = d.w.depths,
                              .share_depth = d.w.depths,
                              .tiles_n = 1,
                              .out = result_of(c, g.i)});
      all.depth = std::max(all.depth, d.w.depths);
    }
  return all;
}

}  // namespace

void implicit_gemm_data(Stream& s, const Conv& c) {
  const Classes classes = classes_of(c);
  if (classes.products.empty()) return;
  const bool whole = in_chunks(c.dy, c.compute, c.shape.o) && in_chunks(c.w, c.compute, c.shape.i);
  visit_dtype(c.compute, [&]<class E>() {
    if (!whole) launch<E, 64, 4, 2, false>(s, classes);
    else if (c.shape.i <= 64) launch<E, 64, 4, 2, true>(s, classes);
    else launch<E, 128, 2, 4, true>(s, classes);
  });
}

}  // namespace hpcdl::cuda
