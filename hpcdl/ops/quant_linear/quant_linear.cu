#include "hpcdl/ops/quant_linear/quant_linear.h"

#include <algorithm>

#include "hpcdl/cuda/workspace.h"
#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/ops/matmul/device_gemm.h"
#include "hpcdl/ops/quant_linear/quant_decode.h"
#include "hpcdl/ops/quant_linear/quant_few.h"
#include "hpcdl/ops/quant_linear/quant_tiles.h"
#include "hpcdl/ops/quant_linear/quant_ways.h"
#include "hpcdl/ops/quant_linear/quant_wide.h"
#include "hpcdl/ops/quant_linear/rotate_rows.h"

namespace hpcdl::cuda {
namespace {

/// Rows of x up to which a warp's tiles are faster than warpgroups' wide ones, and these than decoding W once. H200, us, NF4,
/// 28672 x 8192 (tiles, wide, panels): 16 rows 71, -, -; 32 rows 95, 81, -; 64 rows 137, 101, -; 128 rows 271, 145, -; 256
/// rows -, 292, 465; 512 rows -, 535, 545. 4096 x 4096: 32 rows 12, 14, -; 64 rows 20, 14, -; 256 rows -, 29, 36; 512 rows -,
/// 50, 43. bf16 weights: 107, 108, 115, 124, 175, 310, and 13, 11, 17, 24.
constexpr std::int64_t kMostTiles = 32, kMostTilesOfLarge = 16, kLarge = 8192, kMostWide = 384;
/// The same for tiles where nothing is wide: in f16.
constexpr std::int64_t kMostTilesAlone = 128;

/// A panel of W in the type of products of x, in the workspace of the stream.
struct Panel {
  Stream& s;
  const QuantMatrix& w;
  DType type;
  void* memory;

  Panel(Stream& stream, const QuantMatrix& m, DType x) : s(stream), w(m), type(x), memory(workspace(stream, 1)) {}

  /// Rows, or columns, of which `other` elements each fit; a multiple of 256, but at least one block of it.
  std::int64_t fits(std::int64_t other) const {
    const auto most = static_cast<std::int64_t>(kWorkspaceBytes) / dtype_bytes(type) / std::max<std::int64_t>(other, 1);
    require(most >= 256, "quant_linear",
            "a matrix of {} rows or columns is too large for a GPU: at most {} are possible", other,
            static_cast<std::int64_t>(kWorkspaceBytes) / dtype_bytes(type) / 256);
    return most / 256 * 256;
  }
  void decode(std::int64_t r0, std::int64_t rows, std::int64_t k0, std::int64_t columns) const {
    quant_decode(s, memory, type, w, r0, rows, k0, columns);
  }
};

/// x as matrices of a format multiply it: rotated if they are, in the workspace of the stream.
View rows_for(Stream& s, const View& x, const QuantMatrix& w, DType type) {
  if (!quant_format_info(w.format).rotated) return x;
  void* const memory = workspace(s, 1);
  rotate_rows(s, memory, type, x);
  return View(memory, {{x.rows(), x.cols()}, type}, x.device());
}

const void* moved(const View& v, std::int64_t elements) {
  return v ? v.ptr<std::byte>() + elements * dtype_bytes(v.dtype()) : nullptr;
}

}  // namespace

QuantWay quant_way(const Stream& s, const View& x, const QuantMatrix& w) {
  const std::int64_t rows = x.rows(), tiles = w.n() < kLarge ? kMostTiles : kMostTilesOfLarge;
  if (rows > tiles && rows <= kMostWide && quant_wide_can(s, x, w)) return QuantWay::wide;
  if (rows <= kMostTilesAlone && quant_tiles_can(s, x, w)) return QuantWay::tiles;
  return quant_few_rows_can(x, w) ? QuantWay::few : QuantWay::panels;
}

void quant_linear(Stream& s, Tensor y, View x, const QuantMatrix& w, View bias, View residual, bool constant_weights) {
  if (y.size() == 0) return;
  switch (quant_way(s, x, w)) {
    case QuantWay::few: return quant_few_rows(s, y, rows_for(s, x, w, DType::f32), w, bias, residual);
    case QuantWay::tiles: return quant_tiles(s, y, rows_for(s, x, w, x.dtype()), w, bias, residual, constant_weights);
    case QuantWay::wide:
      return quant_wide(s, y, rows_for(s, x, w, x.dtype()), w, bias, residual, constant_weights,
                        wide_shape(s, x.rows(), w.n(), w.k()));
    case QuantWay::panels: break;
  }
  const Panel panel(s, w, x.dtype());
  const std::int64_t n = y.cols(), k = x.cols(), share = panel.fits(k);
  for (std::int64_t first = 0; first < n; first += share) {
    const auto rows = std::min(share, n - first);
    if (k > 0) panel.decode(first, rows, 0, k);
    gemm(s, {.m = x.rows(),
             .n = rows,
             .k = k,
             .compute = x.dtype(),
             .a = {x.data(), x.dtype(), x.row_stride(), false},
             .b = {panel.memory, panel.type, k, true},
             .out = {.d = const_cast<void*>(moved(y, first)),
                     .dtype = y.dtype(),
                     .ld = y.row_stride(),
                     .bias = moved(bias, first),
                     .bias_dtype = bias.dtype(),
                     .residual = moved(residual, first),
                     .residual_ld = residual ? residual.row_stride() : 0}});
  }
}

void quant_linear_backward(Stream& s, Grad dx, Grad dbias, Grad dresidual, const QuantMatrix& w, View dy) {
  if (dbias || dresidual)
    linear_backward(
        s, {.dx = {}, .dw = {}, .dbias = dbias, .dresidual = dresidual, .x = dy, .w = {}, .z = {}, .dy = dy, .dz = {}},
        {});
  if (!dx || dx.size() == 0) return;
  const Panel panel(s, w, dx.dtype());
  const std::int64_t n = dy.cols(), k = dx.cols(), share = panel.fits(n);
  for (std::int64_t first = 0; first < k; first += share) {
    const auto columns = std::min(share, k - first);
    if (n > 0) panel.decode(0, n, first, columns);
    gemm(s, {.m = dy.rows(),
             .n = columns,
             .k = n,
             .compute = dx.dtype(),
             .a = {dy.data(), dy.dtype(), dy.row_stride(), false},
             .b = {panel.memory, panel.type, columns, false},
             .out = {.d = const_cast<void*>(moved(dx, first)),
                     .dtype = dx.dtype(),
                     .ld = dx.row_stride(),
                     .accumulate = dx.accumulate()}});
  }
}

}  // namespace hpcdl::cuda
