#include "hpcdl/ops/quant_linear/quant_linear.h"

#include <algorithm>

#include "hpcdl/cuda/workspace.h"
#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/ops/matmul/device_gemm.h"
#include "hpcdl/ops/quant_linear/quant_decode.h"
#include "hpcdl/ops/quant_linear/quant_few.h"
#include "hpcdl/ops/quant_linear/quant_tiles.h"

namespace hpcdl::cuda {
namespace {

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

const void* moved(const View& v, std::int64_t elements) {
  return v ? v.ptr<std::byte>() + elements * dtype_bytes(v.dtype()) : nullptr;
}

}  // namespace

void quant_linear(Stream& s, Tensor y, View x, const QuantMatrix& w, View bias, View residual, Tensor) {
  if (y.size() == 0) return;
  if (quant_tiles_can(s, x, w)) return quant_tiles(s, y, x, w, bias, residual);
  if (quant_few_rows_can(x, w)) return quant_few_rows(s, y, x, w, bias, residual);
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

void quant_linear_backward(Stream& s, Grad dx, Grad dbias, Grad dresidual, const QuantMatrix& w, View dy, Tensor) {
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
