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

/// c reads a copy of w with `padded` channels.
Classes classes_of(const Conv& c, std::int64_t padded) {
  const auto& g = c.shape;
  Classes all{.products = {}, .all = {.c = c, .rows = g.n * g.h * g.w, .columns = g.i, .from_columns = g.i}};
  Conv2dShape of_w = g;
  of_w.i = padded;
  for (std::int64_t row = 0; row < g.stride; ++row)
    for (std::int64_t col = 0; col < g.stride; ++col) {
      const DataClass d = data_class(g, row, col);
      const FilterColumns w = data_class(of_w, row, col).w;
      if (d.dx.rows == 0) continue;
      all.products.push_back({.a = {d.dy},
                              .b = w,
                              .a_data = c.dy.data,
                              .b_data = c.w.data,
                              .a_dtype = c.dy.dtype,
                              .b_dtype = c.w.dtype,
                              .rows = d.dx,
                              .depth = w.depths,
                              .share_depth = w.depths,
                              .tiles_n = 1,
                              .out = result_of(c, g.i)});
      all.depth = std::max(all.depth, w.depths);
    }
  return all;
}

}  // namespace

void implicit_gemm_data(Stream& s, const Conv& c, std::int64_t padded) {
  const Classes classes = classes_of(c, padded);
  if (classes.products.empty()) return;
  const bool whole = in_chunks(c.dy, c.compute, c.shape.o) && in_chunks(c.w, c.compute, padded);
  visit_dtype(c.compute, [&]<class E>() {
    if (!whole) launch<E, 64, 4, 2, false>(s, classes);
    else if (padded <= 64) launch<E, 64, 4, 2, true>(s, classes);
    else launch<E, 128, 2, 4, true>(s, classes);
  });
}

}  // namespace hpcdl::cuda
