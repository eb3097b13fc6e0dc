// y and dx of f32 convolutions on Hopper's tensor cores (wgmma), from operands in three bf16 parts (f32_parts.h). A
// block computes 128 pixels x kColumns of the result as an implicit GEMM: for each tap and 64 channels the copy engine
// loads a box of pixels, shifted by the tap, filled with zeros outside of the image, and a box of w. A block iterates
// over tiles; the loads of the next tile overlap the stores of the last.
//
// As in device_gather.h, dx of a convolution with a stride is divided into classes of pixels that the same taps reach;
// all are tiles of one launch.

#include <algorithm>

#include "hpcdl/cuda/tensor_map.h"
#include "hpcdl/cuda/tile/arena.cuh"
#include "hpcdl/cuda/tile/raster.cuh"
#include "hpcdl/cuda/tile/roles.cuh"
#include "hpcdl/cuda/wgmma.cuh"
#include "hpcdl/ops/conv2d/f32_parts.cuh"
#include "hpcdl/ops/conv2d/pixel_boxes.cuh"

namespace hpcdl::cuda {
namespace {

constexpr int kRows = 128, kGroups = 2, kThreads = 128 * (kGroups + 1), kMostClasses = 4;

/// A stage is three boxes of A and three of B, one for each part; each has its own barriers, because each is in use for
/// a different time.
template <int kColumns_, int kStages_> struct PartsTile {
  static constexpr int kColumns = kColumns_, kStages = kStages_, kBoxes = 2 * kParts;
  static constexpr int kRowBytes = kPartChannels * 2, kABytes = kRows * kRowBytes, kBBytes = kColumns * kRowBytes,
                       kStageBytes = kParts * (kABytes + kBBytes);
};
using Broad = PartsTile<128, 2>;
using Narrow = PartsTile<64, 3>;

/// Pixels of the result that the same taps reach.
struct TilesOfClass {
  PixelBoxes boxes;
  int rows, cols;  // per image
  int taps_h, taps_w, first_h, first_w,
      tap_step;                   // pixel (i, j) and tap (a, b) read row i * stride + first_h + a * tap_step ...
  int w_tap_h, w_tap_w, w_every;  // ... and tap row a is row w_tap_h + a * w_every of w
  int steps, share, tiles;        // steps of 64 channels of a tap; per share; tiles per share
  std::int64_t first;             // offset of the first pixel in the result
};

struct PartsProblem {
  TilesOfClass classes[kMostClasses];
  int count, tiles_n, tiles, all_tiles;  // classes; tiles side by side, per share, in total
  int stride, kw, depth_blocks, w_blocks, columns,
      images;                                   // blocks of 64 of k per tap; blocks of 64 channels per tap of w
  std::int64_t image_step, row_step, col_step;  // in elements of the result
  ConvResult out;
};

struct PartsMaps {
  TensorMap images, w;
};

template <class S>
struct PartsMemory : Arena<Room<unsigned char, S::kStages * S::kStageBytes, 1024>,
                           Stages<Channel<S::kStages * S::kBoxes, Warps<kGroups * 4>, Reads::tensor_cores>>> {
  __device__ unsigned char* a(int stage, int part) const {
    return this->template part<0>() + stage * S::kStageBytes + part * S::kABytes;
  }
  __device__ unsigned char* b(int stage, int part) const { return a(stage, kParts) + part * S::kBBytes; }
  __device__ auto boxes() const { return this->template part<1>(); }
  /// The boxes of A come first.
  __device__ static Slot slot(const Ring<S::kStages>& at, int box) { return {at.stage * S::kBoxes + box, at.parity}; }
};

#if HPCDL_SM90A

/// Tile number t.
struct PartsPlace {
  int of, n0, share, begin, end;  // class; first column; steps
  PixelBox box;
  template <class S> __device__ static PartsPlace at(const PartsProblem& p, int t) {
    PartsPlace a;
    a.share = t / p.tiles;
    t -= a.share * p.tiles;
    a.of = 0;
    while (t >= p.classes[a.of].tiles) t -= p.classes[a.of++].tiles;
    const TilesOfClass& c = p.classes[a.of];
    const int row = t / p.tiles_n;
    a.n0 = (t - row * p.tiles_n) * S::kColumns;
    a.box = PixelBox::of(c.boxes, row);
    a.begin = ::min(a.share * c.share, c.steps), a.end = ::min(a.begin + c.share, c.steps);
    return a;
  }
};

/// A box of a stage.
template <class S, Major kB>
__device__ void bring(const PartsMaps& maps, const PartsProblem& p, const PartsMemory<S>& memory,
                      const PartsPlace& tile, int k, const Ring<S::kStages>& at, int box) {
  const TilesOfClass& c = p.classes[tile.of];
  const int tap = k / p.depth_blocks, block = k - tap * p.depth_blocks, a = tap / c.taps_w, b = tap - a * c.taps_w;
  Barrier* const full = memory.boxes().put(PartsMemory<S>::slot(at, box), box < kParts ? S::kABytes : S::kBBytes);
  if (box < kParts) {
    return tma_load(memory.a(at.stage, box), maps.images, full, block * kPartBlock + box * kPartChannels,
                    tile.box.w * p.stride + c.first_w + b * c.tap_step,
                    tile.box.h * p.stride + c.first_h + a * c.tap_step, tile.box.n);
  }
  const int part = box - kParts, w_tap = ((c.w_tap_h + a * c.w_every) * p.kw + c.w_tap_w + b * c.w_every) * p.w_blocks;
  if constexpr (kB == Major::k) {
    tma_load(memory.b(at.stage, part), maps.w, full, (w_tap + block) * kPartBlock + part * kPartChannels, tile.n0);
  } else {
#pragma unroll
    for (int j = 0; j < S::kColumns / kPartChannels; ++j)
      tma_load(memory.b(at.stage, part) + j * (kPartChannels * S::kRowBytes), maps.w, full,
               (w_tap + tile.n0 / kPartChannels + j) * kPartBlock + part * kPartChannels, block * kPartChannels);
  }
}

/// A thread that loads the same `boxes` of every stage: one of A, one of B, or one of A and box kParts further, of B.
template <class S, Major kB>
__device__ void produce(const PartsMaps& maps, const PartsProblem& p, const PartsMemory<S>& memory, int first,
                        int boxes) {
  Ring<S::kStages> at{.stage = 0, .parity = memory.boxes().to_put().parity};
  for (const int t : Raster{p.all_tiles}) {
    const auto tile = PartsPlace::at<S>(p, t);
    for (int k = tile.begin; k < tile.end; ++k, at.next())
      for (int box = first; box < first + boxes * kParts; box += kParts)
        bring<S, kB>(maps, p, memory, tile, k, at, box);
  }
}

/// A thread's sums of the products of first parts, and separately of all others: those are at most 2^-8 of the former
/// and are rounded separately.
template <class S> struct PartsSums {
  float first[S::kColumns / 2], others[S::kColumns / 2];

  /// The products of a stage. Each box is released after the last product that reads it, while the next product is
  /// computed; `give_back` does so.
  template <Major kB, class F>
  __device__ void add(const PartsMemory<S>& memory, const Ring<S::kStages>& at, int group, bool more, F&& give_back) {
    constexpr int kNone = -1;
    constexpr int kLastOfA[kPartProducts] = {2, kNone, kNone, 1, kNone, 0},
                  kLastOfB[kPartProducts] = {kNone, 2, kNone, kNone, 1, 0};
    constexpr bool kFirstOfA[kPartProducts] = {true, true, true, false, false, false},
                   kFirstOfB[kPartProducts] = {true, true, true, false, false, false};
#pragma unroll
    for (int i = 0; i < kPartProducts; ++i) {
      const int part_a = part_of_a(i), part_b = part_of_b(i);
      if (kFirstOfA[i]) memory.boxes().get(memory.slot(at, part_a));
      if (kFirstOfB[i]) memory.boxes().get(memory.slot(at, kParts + part_b));
      const auto a = wgmma_descriptor<Major::k>(memory.a(at.stage, part_a) + group * (64 * S::kRowBytes));
      const auto b = wgmma_descriptor<kB>(memory.b(at.stage, part_b), kPartChannels);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kPartChannels / 16; ++k)
        if (i + 1 < kPartProducts)
          wgmma<bf16, Major::k, kB>(others, a + k * kStepK, b + k * wgmma_step<kB>, more || k > 0 || i > 0);
        else wgmma<bf16, Major::k, kB>(first, a + k * kStepK, b + k * wgmma_step<kB>, more || k > 0);
      wgmma_commit();
      wgmma_wait<1>();
      const int before = (i + kPartProducts - 1) % kPartProducts;
      if (kLastOfA[before] != kNone) give_back(i == 0, kLastOfA[before]);
      if (kLastOfB[before] != kNone) give_back(i == 0, kParts + kLastOfB[before]);
    }
  }
  __device__ void pin() { wgmma_pin(first), wgmma_pin(others); }

  __device__ void store(const PartsProblem& p, const PartsPlace& tile, int group, bool any) const {
    const int thread = static_cast<int>(threadIdx.x) % 128, lane = thread % kWarp;
    const TilesOfClass& c = p.classes[tile.of];
    ConvResult out = p.out;
    if (out.share_step) out.d = static_cast<float*>(out.d) + tile.share * out.share_step;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int m = group * 64 + thread / kWarp * 16 + lane / 4 + half * 8, above = m / c.boxes.w,
                image = above / c.boxes.h;
      const int col = tile.box.w + m % c.boxes.w, row = tile.box.h + above % c.boxes.h, n = tile.box.n + image;
      if (col >= c.cols || row >= c.rows || n >= p.images) continue;
      const std::int64_t at = c.first + n * p.image_step + row * p.row_step + col * p.col_step;
#pragma unroll
      for (int j = 0; j < S::kColumns / 8; ++j) {
        const int column = tile.n0 + j * 8 + lane % 4 * 2, i = j * 4 + half * 2;
        conv_detail::finish(out, at + column, column, p.columns, any ? first[i] + others[i] : 0.0f,
                            any ? first[i + 1] + others[i + 1] : 0.0f);
      }
    }
  }
};

template <class S, Major kB> __device__ void consume(const PartsProblem& p, const PartsMemory<S>& memory, int group) {
  Ring<S::kStages> at;
  const auto done = [&](int stage, int box) {
    if (stage >= 0) memory.boxes().done(stage * S::kBoxes + box);
  };
  for (const int t : Raster{p.all_tiles}) {
    const auto tile = PartsPlace::at<S>(p, t);
    PartsSums<S> sums;
    int before = -1;  // the previous stage
    for (int k = tile.begin; k < tile.end; ++k, at.next()) {
      sums.template add<kB>(memory, at, group, k > tile.begin,
                            [&](bool of_before, int box) { done(of_before ? before : at.stage, box); });
      before = at.stage;
    }
    wgmma_wait<0>();
    sums.pin();
    done(before, 0), done(before, kParts);  // of the last product
    sums.store(p, tile, group, tile.end > tile.begin);
  }
}

#endif

template <class S, Major kB>
__global__ void __launch_bounds__(kThreads, 1)
    parts_tiles(const __grid_constant__ PartsMaps maps, const __grid_constant__ PartsProblem p) {
#if HPCDL_SM90A
  const PartsMemory<S> memory;
  memory.start(maps.images, maps.w);
  // Warps load in the order in which boxes are released: the smallest parts of both, the next, and the first parts of
  // each separately.
  roles<Producers<40, 4>, Consumers<kGroups, 232>>(
      [&](int i) {
        produce<S, kB>(maps, p, memory, i < 2 ? 2 - i : i == 2 ? 0 : kParts, i < 2 ? 2 : 1);
      },
      [&](int group) { consume<S, kB>(p, memory, group); });
#endif
}

// ---------------------------------------------------------------- host code

TilesOfClass tiles_of_class(const Gather& g, const FilterColumns& w, std::int64_t first, int depth_blocks) {
  return {.boxes = {},
          .rows = g.rows,
          .cols = g.cols,
          .taps_h = g.taps_h,
          .taps_w = g.taps_w,
          .first_h = g.first_h,
          .first_w = g.first_w,
          .tap_step = g.tap_step,
          .w_tap_h = w.tap_h,
          .w_tap_w = w.tap_w,
          .w_every = w.every,
          .steps = g.taps_h * g.taps_w * depth_blocks,
          .share = 0,
          .tiles = 0,
          .first = first};
}

/// Everything that does not depend on the tile.
PartsProblem problem_of(const Conv& c) {
  const auto& g = c.shape;
  const bool forward = c.pass == ConvPass::forward;
  const std::int64_t columns = forward ? g.o : g.i, depth = forward ? g.i : g.o;
  PartsProblem p{.classes = {},
                 .count = 0,
                 .tiles_n = 1,
                 .tiles = 0,
                 .all_tiles = 0,
                 .stride = forward ? narrow_int(g.stride) : 1,
                 .kw = narrow_int(g.kw),
                 .depth_blocks = narrow_int(part_blocks(depth)),
                 .w_blocks = narrow_int(part_blocks(g.i)),
                 .columns = narrow_int(columns),
                 .images = narrow_int(g.n),
                 .image_step = 0,
                 .row_step = 0,
                 .col_step = 0,
                 .out = result_of(c, columns)};
  if (forward) {
    p.classes[p.count++] = tiles_of_class(gather_of_x(g), {}, 0, p.depth_blocks);
    p.image_step = g.oh * g.ow * g.o, p.row_step = g.ow * g.o, p.col_step = g.o;
    return p;
  }
  for (std::int64_t row = 0; row < g.stride; ++row)
    for (std::int64_t col = 0; col < g.stride; ++col) {
      const DataClass d = data_class(g, row, col);
      if (d.dx.rows > 0) p.classes[p.count++] = tiles_of_class(d.dy, d.w, d.dx.first, p.depth_blocks);
    }
  std::stable_sort(p.classes, p.classes + p.count,
                   [](const auto& a, const auto& b) { return a.steps > b.steps; });  // the longest first
  const Scatter dx = data_class(g, 0, 0).dx;
  p.image_step = dx.image_step, p.row_step = dx.row_step, p.col_step = dx.col_step;
  return p;
}

/// The tile and the number of shares of the depth that take the least time, in microseconds measured on an H200.
struct PartsPlan {
  bool broad = true;
  int shares = 1;
};
PartsPlan plan_of(const PartsProblem& p, int slots, std::int64_t most_shares, double result_bytes) {
  constexpr double kEnds = 3, kAdding = 5,
                   kBytesPerUs = 2e6;  // per tile; per additional kernel; bandwidth of the sums through memory
  PartsPlan best;
  double least = 1e30;
  for (const bool broad : {true, false}) {
    const double step = broad ? 2.35 : 1.25;
    const int tiles_n = tiles_of(p.columns, broad ? Broad::kColumns : Narrow::kColumns);
    for (int n = 1; n <= most_shares; ++n) {
      double sum = 0, longest = 0;
      int tiles = 0;
      for (int i = 0; i < p.count; ++i) {
        const double t = tiles_of(p.classes[i].steps, n) * step + kEnds;
        const int of_class = p.classes[i].boxes.count * tiles_n * n;
        tiles += of_class, sum += t * of_class, longest = std::max(longest, t);
      }
      const double waves = (tiles + slots - 1) / slots, even = sum / tiles;
      const double t = std::max(longest, p.count == 1 ? waves * even : sum / slots) +
                       (n > 1 ? kAdding + (2 * n + 1) * result_bytes / kBytesPerUs : 0);
      if (t < least) least = t, best = {broad, n};
    }
  }
  return best;
}

template <class S, Major kB>
void launch(Stream& s, const Conv& c, const PartsOperands& parts, PartsProblem p, int shares) {
  constexpr int kBytes = PartsMemory<S>::kBytes;
  allow_shared<parts_tiles<S, kB>>(s, kBytes);
  p.tiles_n = tiles_of(p.columns, S::kColumns);
  for (int i = 0; i < p.count; ++i) {
    auto& of = p.classes[i];
    of.tiles = of.boxes.count * p.tiles_n, of.share = std::max(1, tiles_of(of.steps, shares));
    p.tiles += of.tiles;
  }
  p.all_tiles = p.tiles * shares;
  const auto& g = c.shape;
  const bool forward = c.pass == ConvPass::forward;
  const auto& b = p.classes[0].boxes;
  const std::int64_t pixel = p.depth_blocks * std::int64_t{kPartBlock}, filter = g.taps() * p.w_blocks * kPartBlock;
  const std::int64_t cols = forward ? g.w : g.ow, rows = forward ? g.h : g.oh;
  const PartsMaps maps{.images = tensor_map(forward ? parts.x : parts.dy, DType::bf16, {pixel, cols, rows, g.n},
                                            {pixel, cols * pixel, rows * cols * pixel}, {kPartChannels, b.w, b.h, b.n},
                                            Swizzle::bytes128, {1, p.stride, p.stride, 1}),
                       .w = tensor_map(parts.w, DType::bf16, {filter, g.o}, {filter},
                                       {kPartChannels, kB == Major::k ? S::kColumns : kPartChannels})};
  parts_tiles<S, kB>
      <<<static_cast<unsigned>(std::min(p.all_tiles, multiprocessors(s))), kThreads, kBytes, queue(s)>>>(maps, p);
  launched(forward ? "conv2d" : "conv2d_backward");
}

}  // namespace

void tiles_in_parts(Stream& s, const Conv& c, const PartsOperands& parts) {
  PartsProblem p = problem_of(c);
  if (p.count == 0) return;
  const auto& g = c.shape;
  const bool forward = c.pass == ConvPass::forward;
  const PixelBoxes boxes = boxes_of(p.classes[0].rows, p.classes[0].cols, g.n, kRows, p.stride);
  for (int i = 0; i < p.count; ++i) p.classes[i].boxes = boxes_over(boxes, p.classes[i].rows, p.classes[i].cols, g.n);
  const ConvSums sums{.c = c, .rows = forward ? g.pixels() : g.n * g.h * g.w, .columns = p.columns};
  const std::int64_t most = std::clamp<std::int64_t>(conv_parts_room(sums), 1, 16);
  const PartsPlan plan = plan_of(p, multiprocessors(s), most, static_cast<double>(sums.size()) * 4);
  if (plan.shares > 1) p.out = share_result(s, sums);
  if (plan.broad && forward) launch<Broad, Major::k>(s, c, parts, p, plan.shares);
  else if (plan.broad) launch<Broad, Major::mn>(s, c, parts, p, plan.shares);
  else if (forward) launch<Narrow, Major::k>(s, c, parts, p, plan.shares);
  else launch<Narrow, Major::mn>(s, c, parts, p, plan.shares);
  if (plan.shares > 1) add_conv_shares(s, sums, plan.shares);
}

}  // namespace hpcdl::cuda
