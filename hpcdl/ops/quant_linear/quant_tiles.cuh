#pragma once
// y (rows, N) = x W^T, where a warp decodes 16 rows of W at a time to operands of tensor cores (quant_fragments.cuh).
//
// K is cut into segments of 256 inputs. A block computes some rows of W for all of its columns (rows of x): its warps form
// slices, which take segments in turns, and the warps of a slice, a team, have different rows of W and share x. Each slice
// has a ring of stages in shared memory, which copies fill while earlier stages are multiplied; a ring continues to the next
// rows of W without a pause. In the end the sums of the slices are added in order: by each slice in turn, while the others
// are kAhead items further at most.
//
// Within a group the products are of codes, which are exact; the sum of a group is multiplied by its scale in f32. Minima
// are multiplied by the sum of the inputs of their group, which is a product with ones.

#include <algorithm>

#include "hpcdl/cuda/async_copy.cuh"
#include "hpcdl/cuda/element.cuh"
#include "hpcdl/cuda/mma.cuh"
#include "hpcdl/cuda/overlap.cuh"
#include "hpcdl/cuda/warpgroup.cuh"
#include "hpcdl/ops/quant_linear/quant_fragments.cuh"

namespace hpcdl::cuda {

struct TileOperands {
  QuantWeights w;
  const void *x, *bias, *residual;
  void* y;
  DType bias_type, y_type;
  std::int64_t x_stride, residual_stride, y_stride;
  int rows;          // of x
  bool scale_words;  // the codes of a row's scales are whole words
  bool constant;     // no earlier kernel writes W
};

/// rot_ternary is for experiments: its products are those of few rows, and of panels.
constexpr bool has_tiles(QuantFormat f) { return f != QuantFormat::rot_ternary; }

inline TileOperands tile_operands(const Tensor& y, const View& x, const QuantMatrix& m, const View& bias,
                                  const View& residual, bool constant_weights) {
  const QuantWeights w(m);
  return {.w = w,
          .x = x.data(),
          .bias = bias.data(),
          .residual = residual.data(),
          .y = y.data(),
          .bias_type = bias.dtype(),
          .y_type = y.dtype(),
          .x_stride = x.row_stride(),
          .residual_stride = residual ? residual.row_stride() : 0,
          .y_stride = y.row_stride(),
          .rows = static_cast<int>(x.rows()),
          .scale_words = reinterpret_cast<std::uintptr_t>(w.scale) % 4 == 0 && w.k % kSegment == 0,
          .constant = constant_weights};
}

/// Multiplies by tiles. `shape`: an index of TileShapes; -1: the one with the least expected time.
template <QuantFormat format, class T> void run_tiles(Stream& s, const TileOperands& o, int shape);

/// A block: columns, rows of x that a stage holds, warps in a team, slices, and tiles of 16 rows of W for each warp.
template <int kCols_, int kInputs_, int kTeam_, int kSlices_, int kTiles_> struct TileShape {
  static constexpr int kCols = kCols_, kInputs = kInputs_, kTeam = kTeam_, kSlices = kSlices_, kTiles = kTiles_;
  static constexpr int kWarps = kTeam * kSlices, kThreads = kWarps * kWarp, kWarpRows = 16 * kTiles,
                       kRows = kTeam * kWarpRows;
};

inline constexpr int kMostSharedBytes = 227 << 10;  // of a block, on Hopper
inline constexpr int kScaleTableBytes = 257 * 4 + 12;

template <QuantFormat format_, class T_, class Shape_> struct QuantTile : Shape_ {
  using T = T_;
  using S = Shape_;
  using D = Fragments<format_, T_>;
  static constexpr QuantFormat format = format_;
  // Inputs with one scale, or 0 for a whole row; scales of a row of a segment; whether scales are bytes, or have such codes.
  static constexpr int kScaleGroup = static_cast<int>(quant_format_info(format).group),
                       kScales = kScaleGroup > 0 ? kSegment / kScaleGroup : 0;
  static constexpr int kScaleRows = static_cast<int>(quant_format_info(format).rows);  // that share scales
  static constexpr bool kByteScales = format == QuantFormat::nf4_double || quant_format_info(format).scale == DType::u8;
  static constexpr int kChunks = (D::kBytes + (D::kUnaligned ? 14 : 0) + 15) / 16;
  static constexpr int kColTiles = S::kCols / 8;
  static constexpr int kWarpBytes = S::kWarpRows * D::kStride, kInputBytes = S::kInputs * D::kInputStride,
                       kSliceBytes = kInputBytes + S::kTeam * kWarpBytes, kStageBytes = S::kSlices * kSliceBytes;
  static constexpr int kTableBytes = D::kTableEntries * kTableLine;
  static constexpr int kTables = kTableBytes + (format == QuantFormat::nf4_double ? kScaleTableBytes : 0);
  static constexpr int kAhead = S::kCols == 8 ? 2 : 1;  // items whose sums there is room for
  static constexpr int kItemSums = S::kSlices * S::kTeam * S::kTiles * kColTiles * kWarp,
                       kSumBytes = S::kSlices > 1 ? kAhead *kItemSums * 16 : 0;
  static constexpr int kStages = std::min(4, (kMostSharedBytes - kTables - kSumBytes) / kStageBytes);
  static constexpr int kSharedBytes = kTables + kSumBytes + kStages * kStageBytes;
  static_assert(kStages >= 2 && kChunks * 16 + (D::kUnaligned ? 4 : 0) <= D::kStride);
};

// Of a row of W, a warp copies little at a time, but other warps copy its neighbours: memory is read in longer pieces.

/// Up to 16 bytes at multiples of 16, and zeros after them. `to`: in shared memory.
__device__ inline void copy_first(unsigned to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ inline void copy_whole(unsigned to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void copy_word(unsigned to, const void* from, bool there) {
  asm volatile("cp.async.ca.shared.global.L2::256B [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(there ? 4 : 0)
               : "memory");
}
/// A warp's rows of W in a stage, from `row` on.
struct StagePart {
  std::byte* codes;
  std::int64_t row;
  int segment, lane;
};

/// Fills it where rows or inputs are missing, which become zeros, and where codes of scales are no whole words.
template <class F> __device__ __noinline__ void fill_checked(const TileOperands& o, StagePart part) {
  using D = typename F::D;
  const int lane = part.lane;
  const std::int64_t left = o.w.n - part.row;
  const int rows = left >= F::kWarpRows ? F::kWarpRows : left > 0 ? static_cast<int>(left) : 0;
  for (int i = lane; i < F::kWarpRows * F::kChunks; i += kWarp) {
    const int r = i / F::kChunks, c = i % F::kChunks;
    const std::int64_t begin = (part.row + r) * o.w.row_bytes, start = begin + part.segment * D::kBytes,
                       from = (start & ~std::int64_t{15}) + c * 16;
    const auto rest = begin + o.w.row_bytes - from;
    const int bytes = r < rows && rest > 0 ? static_cast<int>(rest < 16 ? rest : 16) : 0;
    std::byte* const to = part.codes + r * D::kStride + c * 16;
    copy_first(shared_address(to), o.w.codes + (bytes > 0 ? from : 0), bytes);
  }
  if constexpr (D::kScaleWords > 0) {
    constexpr int kOf = F::kScales;
    const std::int64_t groups = (o.w.k + F::kScaleGroup - 1) / F::kScaleGroup;
    for (int i = lane; i < F::kWarpRows * kOf; i += kWarp) {
      const int r = i / kOf, q = i % kOf;
      std::byte* const to = part.codes + r * D::kStride + D::kBytes;
      const bool there = r < rows && part.segment * kOf + q < groups;
      const std::int64_t at = there ? (part.row + r) / F::kScaleRows * groups + part.segment * kOf + q : 0;
      const auto* bytes = static_cast<const std::uint8_t*>(o.w.scale) + at;
      if constexpr (F::format == QuantFormat::nf4_double) {
        copy_word(shared_address(to + q * 4), o.w.outer + at / 256, there);
        reinterpret_cast<std::uint8_t*>(to)[kOf * 4 + q] = there ? *bytes : 0;
      } else if constexpr (F::kByteScales) {
        reinterpret_cast<std::uint8_t*>(to)[q] = there ? *bytes : 0;
      } else {
        copy_word(shared_address(to + q * 4), static_cast<const float*>(o.w.scale) + at, there);
      }
    }
  }
}

/// The work of a warp.
template <class F> struct TileWarp {
  using D = typename F::D;
  using T = typename F::T;
  // Lanes that copy one row: a line of 128 bytes if rows have whole ones.
  static constexpr int kLanes = F::kChunks % 8 == 0 ? 8 : 4, kRowsAtOnce = kWarp / kLanes;
  static constexpr int kGroup = F::kScaleGroup, kOf = F::kScales;

  const TileOperands& o;
  std::byte* ring;  // of the slice
  unsigned ring_address;
  unsigned table_address;
  const float* scale_values;
  int member, lane;  // of the team, of the warp
  int first_col;     // of the block, and how many it has
  int cols;
  // Where the lane begins to copy: from the first row and segment of the warp, and to.
  std::int64_t lane_codes, lane_scales;
  const T* lane_inputs;

  __device__ TileWarp(const TileOperands& operands, std::byte* of_slice, unsigned table, const float* values, int m,
                      int l, int first)
      : o(operands),
        ring(of_slice),
        ring_address(shared_address(of_slice)),
        table_address(table),
        scale_values(values),
        member(m),
        lane(l),
        first_col(first),
        cols(::min(operands.rows - first, F::kCols)),
        lane_codes(lane / kLanes * o.w.row_bytes),
        lane_scales(first_scale(l)),
        lane_inputs(static_cast<const T*>(o.x) + (first + m) * o.x_stride + l * 8) {}

  __device__ std::byte* stage(int i) const { return ring + i * F::kStageBytes; }
  __device__ int codes_at() const { return F::kInputBytes + member * F::kWarpBytes; }  // in a stage

  /// Weights of a stage.
  __device__ void fill(int to, std::int64_t row, int segment) const {
    const int left = static_cast<int>(o.w.k) - segment * kSegment;
    // A row's window begins and ends at multiples of 16, and may reach into the next one.
    const bool whole = left >= kSegment && (!D::kUnaligned || left > kSegment || row + F::kWarpRows < o.w.n) &&
                       row + F::kWarpRows <= o.w.n && (!F::kByteScales || o.scale_words);
    if (!whole) return fill_checked<F>(o, {stage(to) + codes_at(), row, segment, lane});
    const unsigned codes = ring_address + static_cast<unsigned>(to * F::kStageBytes + codes_at());
    fill_codes(codes, row, segment);
    if constexpr (D::kScaleWords > 0) fill_scales(codes + D::kBytes, row, segment);
  }
  /// Inputs of a stage: columns member, member + kTeam, ... of x. Those that are missing become zeros.
  __device__ void fill_inputs(int stage, int segment) const {
    const unsigned to =
        ring_address + static_cast<unsigned>(stage * F::kStageBytes + member * D::kInputStride + lane * 16);
    const bool known = segment * kSegment + lane * 8 < o.w.k;
#pragma unroll
    for (int c = 0; c < (F::kInputs + F::kTeam - 1) / F::kTeam; ++c) {
      const int col = member + c * F::kTeam;
      if (F::kInputs % F::kTeam != 0 && col >= F::kInputs) break;
      const bool there = known && col < cols;
      const T* from = there ? lane_inputs + c * F::kTeam * o.x_stride + segment * kSegment : static_cast<const T*>(o.x);
      copy_first(to + c * F::kTeam * D::kInputStride, from, there ? 16 : 0);
    }
  }
  __device__ void fill_codes(unsigned to, std::int64_t row, int segment) const {
    const std::uint8_t* from = o.w.codes + (row * o.w.row_bytes + segment * D::kBytes + lane_codes);
    to += lane / kLanes * D::kStride + lane % kLanes * 16;
#pragma unroll
    for (int r = 0; r < F::kWarpRows; r += kRowsAtOnce) {
      const auto start = reinterpret_cast<std::uintptr_t>(from + r * o.w.row_bytes);
      const auto* window =
          reinterpret_cast<const std::uint8_t*>(start & ~std::uintptr_t{D::kUnaligned ? 15 : 0}) + lane % kLanes * 16;
#pragma unroll
      for (int c = 0; c < F::kChunks; c += kLanes)
        if (c + kLanes <= F::kChunks || lane % kLanes < F::kChunks - c)
          copy_whole(to + r * D::kStride + c * 16, window + c * 16);
    }
  }
  /// The first scale of those that the lane copies, from that of a warp's first row on.
  __device__ std::int64_t first_scale(int l) const {
    if constexpr (D::kScaleWords == 0) return 0;
    else
      return (F::kScaleRows > 1 ? 0 : l / D::kScaleWords * (o.w.k / kGroup)) +
             l % D::kScaleWords * (kOf / D::kScaleWords);
  }
  /// Scales that are no part of the codes, or what scales them, and then their codes.
  __device__ void fill_scales(unsigned to, std::int64_t row, int segment) const {
    constexpr int kAtOnce = kWarp / D::kScaleWords;  // rows
    // Rows of a warp lie in one block of those that share scales.
    const std::int64_t groups = (o.w.k + kGroup - 1) / kGroup, first = row / F::kScaleRows * groups + segment * kOf;
    const int lane_row = lane / D::kScaleWords;
    const unsigned at = to + lane_row * D::kStride + lane % D::kScaleWords * 4;
#pragma unroll
    for (int r = 0; r < F::kWarpRows; r += kAtOnce) {
      if (r + kAtOnce > F::kWarpRows && lane_row >= F::kWarpRows - r) break;
      const std::int64_t group = first + lane_scales + (F::kScaleRows > 1 ? 0 : r * groups);
      if constexpr (F::format == QuantFormat::nf4_double) copy_word(at + r * D::kStride, o.w.outer + group / 256, true);
      else
        copy_word(at + r * D::kStride, static_cast<const std::uint8_t*>(o.w.scale) + group * (F::kByteScales ? 1 : 4),
                  true);
    }
    if constexpr (F::format == QuantFormat::nf4_double) {
#pragma unroll
      for (int r = 0; r < F::kWarpRows; r += kWarp)
        if (r + kWarp <= F::kWarpRows || lane < F::kWarpRows - r)
          copy_word(to + (r + lane) * D::kStride + kOf * 4,
                    static_cast<const std::uint8_t*>(o.w.scale) + first + (r + lane) * groups, true);
    }
  }

  /// Of formats with one scale for a row: those of the lane's rows.
  struct RowScales {
    float v[F::kTiles][2];
  };
  __device__ RowScales row_scales(std::int64_t row) const {
    RowScales of{};
    constexpr float kUnit = F::format == QuantFormat::int8 ? 1.0f / 127 : 1.0f;
    if constexpr (kGroup == 0)
#pragma unroll
      for (int i = 0; i < F::kTiles * 2; ++i) {
        const std::int64_t r = row + i * 8 + lane / 4;
        of.v[i / 2][i % 2] = r < o.w.n ? static_cast<const float*>(o.w.scale)[r] * kUnit : 0.0f;
      }
    return of;
  }
  __device__ SegmentRow row_of(const std::uint8_t* codes, std::int64_t row, int segment, int r, float of_row) const {
    const int shift =
        D::kUnaligned
            ? static_cast<int>(
                  (static_cast<unsigned>((row + r) * o.w.row_bytes) + static_cast<unsigned>(segment * D::kBytes)) & 15)
            : 0;
    return {codes + r * D::kStride, shift, codes + r * D::kStride + D::kBytes, of_row, table_address, scale_values};
  }

  /// sums[tile][8 columns] += the segment's products.
  __device__ void multiply(float (&sums)[F::kTiles][F::kColTiles][4], std::byte* from, std::int64_t row, int segment,
                           const RowScales& of_rows) const {
    const int g = lane / 4, t = lane % 4;
    const std::byte* x = from + (F::kInputs == 1 ? 0 : g * D::kInputStride);
    SegmentRow rows[F::kTiles][2];
#pragma unroll
    for (int i = 0; i < F::kTiles * 2; ++i)
      rows[i / 2][i % 2] = row_of(reinterpret_cast<const std::uint8_t*>(from) + codes_at(), row, segment, i * 8 + g,
                                  of_rows.v[i / 2][i % 2]);
    constexpr int kSets = kSegment / (D::kGroup * D::kTogether);
#pragma unroll(F::kColTiles <= 2 ? kSets : 1)
    for (int set = 0; set < kSets; ++set) {
      Codes<D::kTogether, D::kProducts> codes[F::kTiles][2];
#pragma unroll
      for (int i = 0; i < F::kTiles * 2; ++i) D::decode(codes[i / 2][i % 2], rows[i / 2][i % 2], set, t);
#pragma unroll
      for (int part = 0; part < D::kTogether; ++part)
#pragma unroll
        for (int j = 0; j < F::kColTiles; ++j) {
          unsigned b[D::kProducts][2];
          load_inputs(b, x + j * 8 * D::kInputStride, set * D::kTogether + part, t);
          add_group(sums, codes, b, part, j);
        }
    }
  }
  __device__ static void load_inputs(unsigned (&b)[D::kProducts][2], const std::byte* x, int group, int t) {
    if constexpr (D::kPaired) {
#pragma unroll
      for (int p = 0; p < D::kProducts; p += 2) {
        const uint4 v = *reinterpret_cast<const uint4*>(x + D::first(group, p, t) * 2);
        b[p][0] = v.x, b[p][1] = v.y, b[p + 1][0] = v.z, b[p + 1][1] = v.w;
      }
    } else {
#pragma unroll
      for (int p = 0; p < D::kProducts; ++p) {
        const uint2 v = *reinterpret_cast<const uint2*>(x + D::first(group, p, t) * 2);
        b[p][0] = v.x, b[p][1] = v.y;
      }
    }
  }
  __device__ static void add_group(float (&sums)[F::kTiles][F::kColTiles][4],
                                   const Codes<D::kTogether, D::kProducts> (&codes)[F::kTiles][2],
                                   const unsigned (&b)[D::kProducts][2], int part, int j) {
    [[maybe_unused]] float inputs[4] = {};
    if constexpr (D::kMinimum) {
      const unsigned ones[4] = {Pairs<T>::kOnes, Pairs<T>::kOnes, Pairs<T>::kOnes, Pairs<T>::kOnes};
#pragma unroll
      for (int p = 0; p < D::kProducts; ++p) mma_16x8x16<T>(inputs, ones, b[p][0], b[p][1]);
    }
#pragma unroll
    for (int i = 0; i < F::kTiles; ++i) {
      const auto &upper = codes[i][0], &lower = codes[i][1];
      float products[4] = {};
#pragma unroll
      for (int p = 0; p < D::kProducts; ++p) {
        const unsigned a[4] = {upper.pairs[part][p][0], lower.pairs[part][p][0], upper.pairs[part][p][1],
                               lower.pairs[part][p][1]};
        mma_16x8x16<T>(products, a, b[p][0], b[p][1]);
      }
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const auto& of = c < 2 ? upper : lower;
        float& sum = sums[i][j][c];
        sum = ::fmaf(products[c], of.scale[part], sum);
        if constexpr (D::kMinimum) sum = ::fmaf(-inputs[c], of.minimum[part], sum);
      }
    }
  }

  /// Writes the sums of a slice to where gather() reads them.
  __device__ void leave(const float (&sums)[F::kTiles][F::kColTiles][4], float4* slots, int slice) const {
#pragma unroll
    for (int i = 0; i < F::kTiles; ++i)
#pragma unroll
      for (int j = 0; j < F::kColTiles; ++j)
        slots[sum_place(slice, i, j)] = {sums[i][j][0], sums[i][j][1], sums[i][j][2], sums[i][j][3]};
  }
  /// The sums of all slices, added in order.
  __device__ void gather(float (&sums)[F::kTiles][F::kColTiles][4], const float4* slots) const {
#pragma unroll
    for (int i = 0; i < F::kTiles; ++i)
#pragma unroll
      for (int j = 0; j < F::kColTiles; ++j) {
        float4 v = slots[sum_place(0, i, j)];
#pragma unroll
        for (int slice = 1; slice < F::kSlices; ++slice) {
          const float4 p = slots[sum_place(slice, i, j)];
          v.x += p.x, v.y += p.y, v.z += p.z, v.w += p.w;
        }
        sums[i][j][0] = v.x, sums[i][j][1] = v.y, sums[i][j][2] = v.z, sums[i][j][3] = v.w;
      }
  }
  /// Writes results: the sums, plus bias and residual.
  __device__ void finish(const float (&sums)[F::kTiles][F::kColTiles][4], std::int64_t row) const {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < F::kTiles; ++i)
#pragma unroll
      for (int j = 0; j < F::kColTiles; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const std::int64_t at = row + i * 16 + c / 2 * 8 + g;
          const int col = j * 8 + t * 2 + c % 2;
          if (at >= o.w.n || col >= cols) continue;
          float sum = sums[i][j][c];
          if (o.bias) sum += fetch(o.bias, o.bias_type, at);
          if (o.residual) sum += fetch(o.residual, o.y_type, (first_col + col) * o.residual_stride + at);
          put(o.y, o.y_type, (first_col + col) * o.y_stride + at, sum);
        }
  }
  __device__ int sum_place(int slice, int tile, int j) const {
    return (((slice * F::kTeam + member) * F::kTiles + tile) * F::kColTiles + j) * kWarp + lane;
  }
};

/// Fills the pairs of values of every entry, a line of copies by each warp in turn.
template <class F> __device__ void fill_table(const TileOperands& o, unsigned* table) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  if constexpr (F::D::kTableEntries > 0) {
    const float own = o.w.value(lane % 16);
    for (int entry = thread / kWarp; entry < F::D::kTableEntries; entry += F::kWarps) {
      Lanes<2> both;
      both.v[0] = __shfl_sync(~0u, own, F::D::first_of(entry)),
      both.v[1] = __shfl_sync(~0u, own, F::D::second_of(entry));
      table[entry * kWarp + lane] = pack<typename F::T>(both).w[0];
    }
  }
}
/// What codes of scales mean.
template <class F> __device__ void fill_scale_values(const TileOperands& o, float* scale_values) {
  if constexpr (F::format == QuantFormat::nf4_double)
    for (int i = static_cast<int>(threadIdx.x); i < 257; i += F::kThreads) scale_values[i] = o.w.table[i];
}

/// The items of a block, and the segments [begin, end), every step-th, of each.
struct Walk {
  int item, segment, begin, end, step, items, apart;

  __device__ Walk(int first, int first_segment, int last_segment, int every, int all, int blocks)
      : item(first),
        segment(first_segment),
        begin(first_segment),
        end(last_segment),
        step(every),
        items(all),
        apart(blocks) {}
  __device__ bool is_there() const { return item < items && segment < end; }
  __device__ void move_on() {
    segment += step;
    if (segment >= end) segment = begin, item += apart;
  }
};

/// Leaves the sums of item number `done` of the block. One slice, each in turn, adds those of all and writes the results; the
/// others go on.
template <class F>
__device__ void join_slices(const TileWarp<F>& work, float (&sums)[F::kTiles][F::kColTiles][4], float4* others,
                            int slice, int done, std::int64_t row) {
  constexpr int kFull = F::kTeam == 1 ? 1 : 1 + F::kSlices,
                kFree = kFull + F::kAhead;  // barriers, after those of teams
  static_assert(kFree + F::kAhead <= 16);
  const int room = done % F::kAhead;
  float4* const slots = others + room * F::kItemSums;
  if (done >= F::kAhead && slice != (done - F::kAhead) % F::kSlices) named_sync(kFree + room, F::kThreads);
  work.leave(sums, slots, slice);
  if (slice != done % F::kSlices) return named_arrive(kFull + room, F::kThreads);
  named_sync(kFull + room, F::kThreads);
  work.gather(sums, slots);
  named_arrive(kFree + room, F::kThreads);
  work.finish(sums, row);
}

template <class F>
__global__ void __launch_bounds__(F::kThreads, 1) multiply_tiles(const __grid_constant__ TileOperands o) {
  extern __shared__ __align__(16) std::byte shared[];
  auto* const table = reinterpret_cast<unsigned*>(shared);
  auto* const scale_values = reinterpret_cast<float*>(shared + F::kTableBytes);
  auto* const others = reinterpret_cast<float4*>(shared + F::kTables);
  const int warp = warp_index(), slice = warp / F::kTeam, lane = static_cast<int>(threadIdx.x) % kWarp;
  let_next_begin();
  const int first_col = static_cast<int>(blockIdx.y) * F::kCols;
  const TileWarp<F> work(o, shared + F::kTables + F::kSumBytes + slice * F::kSliceBytes, shared_address(table + lane),
                         scale_values, warp % F::kTeam, lane, first_col);
  const int segments = static_cast<int>((o.w.k + kSegment - 1) / kSegment);
  const auto items = static_cast<int>((o.w.n + F::kRows - 1) / F::kRows);
  const auto row_of = [&](int item) { return std::int64_t{item} * F::kRows + work.member * F::kWarpRows; };
  const auto team_sync = [&] {
    if constexpr (F::kTeam == 1) __syncwarp();
    else named_sync(1 + slice, F::kTeam * kWarp);
  };

  Walk next(static_cast<int>(blockIdx.x), slice, segments, F::kSlices, items, static_cast<int>(gridDim.x));
  // Weights that are constant arrive while the previous kernel runs.
  if (!o.constant) await_previous();
  const auto begin = next;
#pragma unroll
  for (int i = 0; i + 1 < F::kStages; ++i)
    if (next.is_there()) work.fill(i, row_of(next.item), next.segment), next.move_on();
  fill_table<F>(o, table);
  if (o.constant) await_previous();
  next = begin;
#pragma unroll
  for (int i = 0; i + 1 < F::kStages; ++i) {
    if (next.is_there()) work.fill_inputs(i, next.segment), next.move_on();
    copies_issued();
  }
  fill_scale_values<F>(o, scale_values);
  __syncthreads();
  int at = 0;
  [[maybe_unused]] int done = 0;
  for (int item = static_cast<int>(blockIdx.x); item < items; item += static_cast<int>(gridDim.x)) {
    const std::int64_t row = row_of(item);
    const auto of_rows = work.row_scales(row);
    float sums[F::kTiles][F::kColTiles][4] = {};
    for (int segment = slice; segment < segments; segment += F::kSlices) {
      copies_arrived<F::kStages - 2>();
      team_sync();
      if (next.is_there()) {
        const int free = at == 0 ? F::kStages - 1 : at - 1;
        work.fill_inputs(free, next.segment);
        work.fill(free, row_of(next.item), next.segment);
        next.move_on();
      }
      copies_issued();
      work.multiply(sums, work.stage(at), row, segment, of_rows);
      at = at + 1 == F::kStages ? 0 : at + 1;
    }
    if constexpr (F::kSlices == 1) work.finish(sums, row);
    else join_slices<F>(work, sums, others, slice, done++, row);
  }
}

}  // namespace hpcdl::cuda
