#pragma once
// y (rows, N) = x W^T, where the warps of two warpgroups decode 16 rows of W each to operand A of warpgroup products, times
// their scales, rounded to bf16. The decoders are those of quant_tiles.cuh, which has a warp's copies of codes, too.
//
// x is arranged before: for each block of columns and segment of 256 inputs it is the operand B that products read, in
// the order in which decoders take inputs, so that one copy brings it to a stage. If there are few rows of W, the blocks of a
// cluster divide K; the first one adds up their sums in order.

#include "hpcdl/cuda/tile/channel.cuh"
#include "hpcdl/cuda/wgmma.cuh"
#include "hpcdl/ops/quant_linear/quant_tiles.cuh"

namespace hpcdl::cuda {

struct WideOperands {
  TileOperands tile;  // x is that of arrange_rows()
  int splits;
};

/// Multiplies; the workspace at `arranged` has room for x. One file for each format (tiles_*.cu).
template <QuantFormat format> void run_wide(Stream& s, const TileOperands& o, void* arranged, int cols, int splits);

inline constexpr int kWideTeam = 8, kWideRows = 16 * kWideTeam;  // warps, rows of W of a block

template <QuantFormat format_, int kCols_> struct WideTile {
  static constexpr int kCols = kCols_, kSegmentBytes = kCols * kSegment * 2;
  using Warp = QuantTile<format_, bf16, TileShape<kCols, 0, kWideTeam, 1, 1>>;
  using D = typename Warp::D;
  static constexpr QuantFormat format = format_;
  static constexpr int kStageBytes = kSegmentBytes + Warp::kStageBytes, kBarrierBytes = 64;
  static constexpr int kStages = std::min(4, (kMostSharedBytes - Warp::kTables - kBarrierBytes) / kStageBytes);
  static constexpr int kWeights = kStages * kSegmentBytes, kTables = kStages * kStageBytes,
                       kBarriers = kTables + Warp::kTables, kSharedBytes = kBarriers + kBarrierBytes;
  static constexpr int kSets = kSegment / (D::kGroup * D::kTogether), kSteps = D::kTogether * D::kProducts;
  static_assert(kStages >= 2 && kSets * kSteps == kSegment / 16 && kBarriers % 8 == 0);
};

/// Where 4 neighbouring inputs of row `row` of an arranged segment lie: of product `step` of 16, with lane t = lane % 4. The
/// first two are there, the other two 16 bytes further, under the swizzle.
template <int kCols> __device__ inline unsigned arranged_at(int row, int step, int t, int half) {
  return static_cast<unsigned>(step / 4 * kCols * 128) +
         swizzled128(static_cast<unsigned>(row * 128 + step % 4 * 32 + half * 16 + t * 4));
}

/// Threads: runs of 4 inputs. Blocks: (segments, rows of all blocks of columns).
template <class F>
__global__ void __launch_bounds__(64)
    arrange_rows(std::byte* __restrict__ to, const bf16* __restrict__ x, std::int64_t stride, int rows, int k) {
  using D = typename F::D;
  let_next_begin();
  await_previous();
  const int step = static_cast<int>(threadIdx.x) / 4, t = static_cast<int>(threadIdx.x) % 4,
            segment = static_cast<int>(blockIdx.x), row = static_cast<int>(blockIdx.y),
            segments = static_cast<int>(gridDim.x);
  const int from = segment * kSegment + D::first(step / D::kProducts, step % D::kProducts, t);
  uint2 v{};
  if (row < rows && from < k) v = *reinterpret_cast<const uint2*>(x + row * stride + from);
  std::byte* const tile = to + (std::int64_t{row / F::kCols} * segments + segment) * F::kSegmentBytes;
  *reinterpret_cast<unsigned*>(tile + arranged_at<F::kCols>(row % F::kCols, step, t, 0)) = v.x;
  *reinterpret_cast<unsigned*>(tile + arranged_at<F::kCols>(row % F::kCols, step, t, 1)) = v.y;
}

#if HPCDL_SM90A

/// A pair of codes times the scale, less the minimum.
template <class D> __device__ unsigned weights_of(unsigned pair, float scale, [[maybe_unused]] float minimum) {
  const auto s = __float2bfloat162_rn(scale);
  const auto& q = reinterpret_cast<const __nv_bfloat162&>(pair);
  const __nv_bfloat162 w = D::kMinimum ? __hfma2(q, s, __float2bfloat162_rn(-minimum)) : __hmul2(q, s);
  return reinterpret_cast<const unsigned&>(w);
}

/// sums += the products of a segment whose codes are in `codes` and whose x is at `x`. While products of a set of groups run,
/// the next set is decoded.
template <class F>
__device__ void multiply_wide(float (&sums)[F::kCols / 2], const TileWarp<typename F::Warp>& work, std::byte* codes,
                              const std::byte* x, std::int64_t row, int segment,
                              const typename TileWarp<typename F::Warp>::RowScales& of_rows) {
  using D = typename F::D;
  const int g = work.lane / 4, t = work.lane % 4;
  SegmentRow rows[2];
#pragma unroll
  for (int i = 0; i < 2; ++i)
    rows[i] = work.row_of(reinterpret_cast<const std::uint8_t*>(codes) + work.codes_at(), row, segment, i * 8 + g,
                          of_rows.v[0][i]);
  const std::uint64_t b = wgmma_descriptor<Major::k>(x);
  unsigned a[2][F::kSteps][4];
#pragma unroll
  for (int set = 0; set < F::kSets; ++set) {
    auto& operand = a[set % 2];
    if (set >= 2) wgmma_wait<1>();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      Codes<D::kTogether, D::kProducts> of;
      D::decode(of, rows[i], set, t);
#pragma unroll
      for (int n = 0; n < F::kSteps; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int part = n / D::kProducts;
          operand[n][half * 2 + i] =
              weights_of<D>(of.pairs[part][n % D::kProducts][half], of.scale[part], of.minimum[part]);
        }
    }
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < F::kSteps; ++n) {
      const int step = set * F::kSteps + n;
      wgmma<bf16, Major::k>(sums, operand[n], b + (step / 4 * F::kCols * 128 >> 4) + step % 4 * kStepK, true);
    }
    wgmma_commit();
  }
  wgmma_wait<0>();
  wgmma_pin(sums);
}

__device__ inline float4 load_of_block(unsigned rank, const float4* p) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address_at(rank, p))
               : "memory");
  return v;
}

/// The first block of a cluster adds the sums of the others to its own, in order. They lie in the memory of stages, which
/// are not needed any more: such a block has one item.
template <class F>
__device__ void join_blocks(float (&sums)[1][F::kCols / 8][4], std::byte* stages, int split, int splits) {
  constexpr int kThreads = kWideTeam * kWarp;
  auto* const parts = reinterpret_cast<float4*>(stages) + threadIdx.x;
  __syncthreads();
  if (split > 0)
#pragma unroll
    for (int j = 0; j < F::kCols / 8; ++j)
      parts[j * kThreads] = {sums[0][j][0], sums[0][j][1], sums[0][j][2], sums[0][j][3]};
  cluster_sync();
  if (split == 0)
    for (int other = 1; other < splits; ++other)
#pragma unroll
      for (int j = 0; j < F::kCols / 8; ++j) {
        const float4 p = load_of_block(static_cast<unsigned>(other), parts + j * kThreads);
        sums[0][j][0] += p.x, sums[0][j][1] += p.y, sums[0][j][2] += p.z, sums[0][j][3] += p.w;
      }
  cluster_sync();  // no block may leave while the first one reads its sums
}

#endif

template <class F>
__global__ void __launch_bounds__(kWideTeam* kWarp, 1) multiply_wide_tiles(const __grid_constant__ WideOperands o) {
#if HPCDL_SM90A
  extern __shared__ __align__(1024) std::byte stages[];
  auto* const table = reinterpret_cast<unsigned*>(stages + F::kTables);
  auto* const scale_values = reinterpret_cast<float*>(stages + F::kTables + F::Warp::kTableBytes);
  auto* const full = reinterpret_cast<Barrier*>(stages + F::kBarriers);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, split = static_cast<int>(blockIdx.x) % o.splits;
  let_next_begin();
  if (threadIdx.x == 0) {
    for (int i = 0; i < F::kStages; ++i) Mbarriers::init(full + i, 1);
    Mbarriers::publish();
  }

  const int first_col = static_cast<int>(blockIdx.y) * F::kCols;
  const TileWarp<typename F::Warp> work(o.tile, stages + F::kWeights, shared_address(table + lane), scale_values,
                                        warp_index(), lane, first_col);
  const int segments = static_cast<int>((o.tile.w.k + kSegment - 1) / kSegment), begin = segments * split / o.splits,
            end = segments * (split + 1) / o.splits;
  const auto items = static_cast<int>((o.tile.w.n + F::Warp::kRows - 1) / F::Warp::kRows),
             apart = static_cast<int>(gridDim.x) / o.splits;
  const auto row_of = [&](int item) { return std::int64_t{item} * F::Warp::kRows + work.member * F::Warp::kWarpRows; };
  const std::byte* const x =
      static_cast<const std::byte*>(o.tile.x) + std::int64_t{blockIdx.y} * segments * F::kSegmentBytes;

  Walk next(static_cast<int>(blockIdx.x) / o.splits, begin, end, 1, items, apart);
  const auto fill_inputs = [&](int stage) {
    if (threadIdx.x > 0) return;
    Mbarriers::expect(full + stage, F::kSegmentBytes);
    bulk_load(stages + stage * F::kSegmentBytes, x + std::int64_t{next.segment} * F::kSegmentBytes, F::kSegmentBytes,
              full + stage);
  };
  // Weights that are constant arrive while x is arranged.
  if (!o.tile.constant) await_previous();
  const auto first = next;
#pragma unroll
  for (int i = 0; i + 1 < F::kStages; ++i) {
    if (next.is_there()) work.fill(i, row_of(next.item), next.segment), next.move_on();
    copies_issued();
  }
  fill_table<typename F::Warp>(o.tile, table);
  if (o.tile.constant) await_previous();
  next = first;
  for (int i = 0; i + 1 < F::kStages; ++i)
    if (next.is_there()) fill_inputs(i), next.move_on();
  fill_scale_values<typename F::Warp>(o.tile, scale_values);
  int at = 0;
  unsigned parity = 0;
  for (int item = static_cast<int>(blockIdx.x) / o.splits; item < items; item += apart) {
    const std::int64_t row = row_of(item);
    const auto of_rows = work.row_scales(row);
    float sums[F::kCols / 2] = {};
    for (int segment = begin; segment < end; ++segment) {
      copies_arrived<F::kStages - 2>();
      __syncthreads();  // the stage that is filled next has been multiplied
      if (next.is_there()) {
        const int free = at == 0 ? F::kStages - 1 : at - 1;
        fill_inputs(free);
        work.fill(free, row_of(next.item), next.segment);
        next.move_on();
      }
      copies_issued();
      Mbarriers::wait(full + at, parity);
      multiply_wide<F>(sums, work, work.stage(at), stages + at * F::kSegmentBytes, row, segment, of_rows);
      if (++at == F::kStages) at = 0, parity ^= 1;
    }
    float mine[1][F::kCols / 8][4];
#pragma unroll
    for (int i = 0; i < F::kCols / 2; ++i) mine[0][i / 4][i % 4] = sums[i];
    if (o.splits > 1) join_blocks<F>(mine, stages, split, o.splits);
    if (split == 0) work.finish(mine, row);
  }
#endif
}

}  // namespace hpcdl::cuda
