#include "hpcdl/ops/int4_linear/int4_widened.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <span>
#include <string>
#include <utility>

#include "hpcdl/cuda/tensor_map.h"
#include "hpcdl/cuda/workspace.h"
#include "hpcdl/ops/int4_linear/int4_widened.cuh"

// Host code of the kernel.

namespace hpcdl::cuda {
namespace {

using namespace quant4;

template <class F> void prepare(const Stream& s) {
  static std::atomic<bool> done[64] = {};  // per device
  if (done[s.device().index % 64].exchange(true)) return;
  check(cudaFuncSetAttribute(widened_kernel<F>, cudaFuncAttributeMaxDynamicSharedMemorySize, F::kSharedBytes),
        "int4_linear");
}

/// The number of blocks that the GPU runs at once; queried once.
template <class F> int blocks_at_once(const Stream& s, int of_cluster) {
  static std::atomic<int> known[64][kMostSplits + 1] = {};
  auto& found = known[s.device().index % 64][of_cluster];
  if (found) return found;
  prepare<F>(s);
  cudaLaunchAttribute cluster{.id = cudaLaunchAttributeClusterDimension, .val = {}};
  cluster.val.clusterDim = {static_cast<unsigned>(of_cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(of_cluster), config.blockDim = F::kThreads;
  config.dynamicSmemBytes = F::kSharedBytes, config.attrs = &cluster, config.numAttrs = 1;
  int clusters = 0;
  check(cudaOccupancyMaxActiveClusters(&clusters, widened_kernel<F>, &config), "cudaOccupancyMaxActiveClusters");
  return found = std::max(1, clusters * of_cluster);
}

/// Whether the copy engine can address it where it lies.
bool addressable(View v) { return mappable(v.data(), v.dtype(), v.row_stride()); }
/// The bytes of the workspace for a copy that it can address.
std::int64_t room(View v) { return (v.bytes() + 1023) / 1024 * 1024; }
View addressed(Stream& s, View v, std::byte*& free) {
  if (!v || addressable(v)) return v;
  std::byte* const to = std::exchange(free, free + room(v));
  const auto row = static_cast<std::size_t>(v.cols() * dtype_bytes(v.dtype()));
  check(cudaMemcpy2DAsync(to, row, v.data(), static_cast<std::size_t>(v.row_stride() * dtype_bytes(v.dtype())), row,
                          static_cast<std::size_t>(v.rows()), cudaMemcpyDeviceToDevice, queue(s)),
        "int4_linear");
  return {to, v.spec(), s.device()};
}

}  // namespace

std::string name_of(const WidenedTile& t) {
  return fmt::format("{}x{}/{}{}", 64 * t.row_sets, t.cols, t.splits, t.exact ? " exact" : "");
}
std::string name_of(const WidenedPlan& plan, std::int64_t n) {
  if (plan.rows == n) return name_of(plan.tile);
  return fmt::format("{}, from row {} on {}", name_of(plan.tile), plan.rows, name_of(plan.rest));
}

namespace {

template <class... Tiles> struct TileList {
  static constexpr std::array<WidenedTile, sizeof...(Tiles)> all = {
      WidenedTile{Tiles::kRowSets, Tiles::kCols, 1, Tiles::kExact}...};

  /// f.template operator()<F>() with the kernel of a tile.
  template <class F> static void with(const WidenedTile& tile, F&& f) {
    const auto is = [&]<class T>() { return T::kRowSets == tile.row_sets && T::kCols == tile.cols; };
    const bool found = ((is.template operator()<Tiles>() && (f.template operator()<Tiles>(), true)) || ...);
    require(found, "int4_linear", "no kernel has tiles of {}: widened_tiles() lists them", name_of(tile));
  }
};
using RoundedTiles = TileList<Widened<2, 32>, Widened<2, 64>, Widened<2, 96>, Widened<2, 128>, Widened<2, 192>,
                              Widened<2, 256>, Widened<3, 32>, Widened<3, 64>, Widened<3, 96>, Widened<3, 128>>;
using ExactTiles = TileList<Widened<2, 64, true>, Widened<2, 128, true>, Widened<2, 192, true>>;

template <class F> void with_tile(const WidenedTile& tile, F&& f) {
  if (tile.exact) ExactTiles::with(tile, f);
  else RoundedTiles::with(tile, f);
}

template <class F> void start(Stream& s, const Product& o, int splits) {
  prepare<F>(s);
  const auto columns = static_cast<int>(blocks_for(o.rows, F::kCols));
  const bool quads =
      o.plain && (o.y_dtype == DType::bf16 || o.y_dtype == DType::f32) && o.n % 4 == 0 && o.y_stride % 4 == 0 &&
      reinterpret_cast<std::uintptr_t>(o.y) % static_cast<std::uintptr_t>(4 * dtype_bytes(o.y_dtype)) == 0;
  const WidenedGrid grid{columns, static_cast<int>(blocks_for(o.n, F::kRows)) * columns, splits, quads};
  const int clusters = grid.continues<F>() ? std::min(grid.places, blocks_at_once<F>(s, 1)) : grid.places;
  const std::int64_t tiles = o.n / F::kTile, scales = o.groups * F::kTile;
  const int of_step = std::max<int>(1, static_cast<int>(F::kStep * o.groups / o.k)) * F::kTile;
  const auto by_tile = [&](const bf16* from) {
    return tensor_map(from, DType::bf16, {scales, tiles}, {scales}, {of_step, F::kTiles}, Swizzle::none);
  };
  const WidenedMaps maps{
      tensor_map(o.x, DType::bf16, {o.k, o.rows}, {o.x_stride}, {F::kStep, F::kCols}),
      tensor_map(o.packed, DType::i32, {o.k * 2, tiles}, {o.k * 2}, {F::kTileBytes / 4, F::kTiles}, Swizzle::none),
      by_tile(o.scale), by_tile(o.offset ? o.offset : o.scale)};
  launch_overlapped(queue(s), has_clusters(s), widened_kernel<F>,
                    {.grid = static_cast<unsigned>(clusters * splits),
                     .block = F::kThreads,
                     .shared = F::kSharedBytes,
                     .cluster = static_cast<unsigned>(splits)},
                    "int4_linear.widened", o, maps, grid);
}

}  // namespace

bool fits_widened(const Stream& s, View x, const int4::Weight& w) {
  std::int64_t copied = 0;
  for (const View& v : {x, w.packed, w.scale, w.offset})
    if (v && !addressable(v)) copied += room(v);
  return has_sm90a(s) && x.dtype() == DType::bf16 && w.n() >= kTileRows &&
         copied <= static_cast<std::int64_t>(kWorkspaceBytes);
}

std::span<const WidenedTile> widened_tiles(bool exact) {
  if (exact) return ExactTiles::all;
  return RoundedTiles::all;
}

int widened_blocks(const Stream& s, const WidenedTile& tile) {
  int blocks = 1;
  with_tile(tile, [&]<class F>() { blocks = blocks_at_once<F>(s, tile.splits); });
  return blocks;
}

void quant4::make_addressable(Stream& s, View& x, int4::Weight& w) {
  auto* free = static_cast<std::byte*>(workspace(s));
  for (View* v : {&x, &w.packed, &w.scale, &w.offset}) *v = addressed(s, *v, free);
}

void quant4::multiply_widened(Stream& s, const Product& o, const WidenedTile& tile) {
  with_tile(tile, [&]<class F>() { start<F>(s, o, tile.splits); });
}

}  // namespace hpcdl::cuda
