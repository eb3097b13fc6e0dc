#include <algorithm>

#include "hpcdl/cuda/workspace.h"
#include "hpcdl/ops/conv2d/own_kernel.h"

namespace hpcdl::cuda {
namespace {

using Product = ConvProduct<PixelDepths, TermRows>;
constexpr int kMostShares = 64, kN = 128;

template <class E, int kM, int kWarpsM, int kWarpsN, bool kWholeA, bool kWholeB> void launch(Stream& s, const Conv& c, Product p) {
  const std::int64_t size = c.shape.o * c.shape.k();
  p.tiles_n = tiles_of(p.rows.columns, kN);
  const auto room = static_cast<std::int64_t>((kWorkspaceBytes - kConvWeightBytes) / sizeof(float)) / size;
  const ConvShares shares = conv_shares(tiles_of(p.rows.rows, kM) * p.tiles_n, tiles_of(p.depth, kConvDepth<E>), kConvDepth<E>, 2 * multiprocessors(s),
                                        static_cast<int>(std::clamp<std::int64_t>(room, 1, kMostShares)));
  p.share_depth = shares.depth;
  if (shares.count == 1) return launch_conv<E, kM, kN, kWarpsM, kWarpsN, kWholeA, kWholeB>(s, p, 1, "conv2d_backward");
  auto* parts = reinterpret_cast<float*>(static_cast<std::byte*>(workspace(s)) + kConvWeightBytes);
  p.out = {.d = parts, .dtype = DType::f32, .pairs = c.shape.k() % 2 == 0, .bias = {}, .share_step = size};
  launch_conv<E, kM, kN, kWarpsM, kWarpsN, kWholeA, kWholeB>(s, p, shares.count, "conv2d_backward");
  add_conv_shares(s, c, parts, shares.count);
}

}  // namespace

void own_weight(Stream& s, const Conv& c) {
  const auto& g = c.shape;
  const int o = narrow_int(g.o), pixels = narrow_int(g.pixels());
  const Product p{.a = {.rows = o, .depths = pixels}, .b = {gather_of_x(g)}, .a_data = c.dy.data, .b_data = c.x.data, .a_dtype = c.dy.dtype,
                  .b_dtype = c.x.dtype, .rows = dense_rows(o, narrow_int(g.k())), .depth = pixels, .share_depth = pixels, .tiles_n = 1,
                  .out = result_of(c, g.k())};
  const bool a = in_chunks(c.dy, c.compute, g.o), b = in_chunks(c.x, c.compute, g.i);
  visit_dtype(c.compute, [&]<class E>() {
    if (!a) launch<E, 64, 2, 4, false, false>(s, c, p);
    else if (!b) launch<E, 64, 2, 4, true, false>(s, c, p);
    else if (sizeof(E) == 4 || g.o <= 64) launch<E, 64, 2, 4, true, true>(s, c, p);
    else if constexpr (sizeof(E) == 2) launch<E, 128, 2, 4, true, true>(s, c, p);
  });
}

}  // namespace hpcdl::cuda
