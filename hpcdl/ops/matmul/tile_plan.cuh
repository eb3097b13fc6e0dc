#pragma once
// Host code for a launch of tile_gemm: the supported products, the tensor maps of operands, the tiles.

#include "hpcdl/cuda/tensor_map.h"
#include "hpcdl/ops/matmul/tile_kernel.cuh"

namespace hpcdl::cuda {

/// One compiled tile shape. `launch` selects the instance by element type and layouts.
struct TileConfig {
  int m, n, stages, cluster;
  bool in_turn;
  void (*launch)(Stream& s, const TileMaps& maps, const TileProblem& p, DType type, bool a_along_m, bool b_along_n);
};

/// True if the copy engine can move every operand, given types, addresses and strides.
inline bool fits_tiles(const Gemm& g) {
  const auto operand = [&](const GemmOperand& o) {
    return o.dtype == g.compute && mappable(o.data, o.dtype, o.ld) && o.batch_stride * dtype_bytes(o.dtype) % 16 == 0;
  };
  // The copy engine writes whole 16-byte pieces: a row that ends inside one would overwrite what follows it.
  const auto result = [&](const void* p, std::int64_t ld, std::int64_t stride) {
    return mappable(p, g.out.dtype, ld) && stride * dtype_bytes(g.out.dtype) % 16 == 0 &&
           g.n * dtype_bytes(g.out.dtype) % 16 == 0;
  };
  const auto& o = g.out;
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  if (g.compute != DType::bf16 && g.compute != DType::f16) return false;
  if (g.k <= 0 || g.m >= kMost || g.n >= kMost || g.k >= kMost || !operand(g.a) || !operand(g.b) ||
      !result(o.d, o.ld, o.batch_stride))
    return false;
  const bool c = o.residual || (o.accumulate && o.dtype != DType::f32);  // is loaded to the place of z
  if (o.z && (c || g.batch > 1 || !result(o.z, o.z_ld, 0))) return false;
  if (o.dtype == DType::f32) return !o.residual;
  return o.dtype == g.compute &&
         !(o.residual && (o.accumulate || !result(o.residual, o.residual_ld, o.residual_batch_stride)));
}

inline TensorMap operand_map(const GemmOperand& o, bool along_k, std::int64_t rows, std::int64_t k, std::int64_t batch,
                             int box_rows) {
  const auto apart = batch > 1 && o.batch_stride != 0 ? o.batch_stride : o.ld;
  const auto count = batch > 1 && o.batch_stride != 0 ? batch : 1;
  if (along_k) return tensor_map(o.data, o.dtype, {k, rows, count}, {o.ld, apart}, {64, box_rows, 1});
  return tensor_map(o.data, o.dtype, {rows, k, count}, {o.ld, apart}, {64, 64, 1});
}
inline TensorMap result_map(const void* p, DType d, std::int64_t rows, std::int64_t cols, std::int64_t ld,
                            std::int64_t layers, std::int64_t stride) {
  return tensor_map(p, d, {cols, rows, layers}, {ld, layers > 1 ? stride : ld}, {128 / dtype_bytes(d), 64, 1});
}

/// Launches g, for which fits_tiles() holds, in tiles of `c`. With `parts`, sums of each of `splits` shares of k go to
/// parts (the splits of each matrix consecutively, rows of `parts_ld`), and the caller applies the epilogue.
inline void run_tiles(Stream& s, const Gemm& g, const TileConfig& c, int group, int splits = 1, float* parts = nullptr,
                      std::int64_t parts_ld = 0) {
  const auto& o = g.out;
  TileProblem p;
  p.n = static_cast<int>(g.n);
  p.tiles_m = static_cast<int>((g.m + c.m * c.cluster - 1) / (c.m * c.cluster)),
  p.tiles_n = static_cast<int>((g.n + c.n - 1) / c.n);
  p.group = group, p.splits = splits;
  p.k_blocks = static_cast<int>((g.k + 63) / 64), p.k_blocks_per_split = (p.k_blocks + splits - 1) / splits;
  p.a_batched = g.a.batch_stride != 0, p.b_batched = g.b.batch_stride != 0;
  const std::int64_t layers = g.batch * splits, tiles = layers * p.tiles_m * p.tiles_n;
  require(tiles < (std::int64_t{1} << 31), "matmul", "{} tiles are more than one launch can have", tiles);
  p.tiles = static_cast<int>(tiles);
  TileMaps maps;
  maps.a = operand_map(g.a, !g.a.transposed, g.m, g.k, g.batch, c.m);
  maps.b = operand_map(g.b, g.b.transposed, g.n, g.k, g.batch, c.n / c.cluster);
  if (parts) {
    maps.d = maps.c = maps.z = result_map(parts, DType::f32, g.m, g.n, parts_ld, layers, g.m * parts_ld);
    p.out.f32 = true;
  } else {
    maps.d = maps.c = maps.z = result_map(o.d, o.dtype, g.m, g.n, o.ld, layers, o.batch_stride);
    if (o.z) maps.z = result_map(o.z, o.dtype, g.m, g.n, o.z_ld, 1, 0);
    if (o.residual) maps.c = result_map(o.residual, o.dtype, g.m, g.n, o.residual_ld, layers, o.residual_batch_stride);
    p.out = {.scale = o.scale,
             .bias = o.bias,
             .bias_dtype = o.bias_dtype,
             .activation = o.activation,
             .keep_z = o.z != nullptr,
             .f32 = o.dtype == DType::f32};
    if (o.residual)
      p.out.c = o.residual_is_z     ? TileC::z_of_slope
                : o.residual_inside ? TileC::before_activation
                                    : TileC::after_activation;
    else if (o.accumulate && !p.out.f32) p.out.c = TileC::after_activation;
    p.out.add = o.accumulate && p.out.f32;
  }
  c.launch(s, maps, p, g.compute, g.a.transposed, !g.b.transposed);
}

}  // namespace hpcdl::cuda
