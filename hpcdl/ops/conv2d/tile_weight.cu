// The gradient of a weight on Hopper's tensor cores (wgmma): dw (O; taps x I) = dy (O; pixels) times x (taps x I;
// pixels), 16-bit operands or f32 in three bf16 parts (f32_parts.h), f32 sums. Pixels are the depth. The copy engine
// loads boxes of pixels in their memory layout, (pixels; 64 channels) each: of dy once, of x once per tap, shifted by
// it; elements outside of an image are filled with zeros. Channels are contiguous in both operands.
//
// A block computes kRows x kColumns of dw from a share of the pixels: columns are (tap, 64 channels of x) in the order
// of dw.

#include <algorithm>

#include "hpcdl/cuda/tensor_map.h"
#include "hpcdl/cuda/tile/arena.cuh"
#include "hpcdl/cuda/tile/roles.cuh"
#include "hpcdl/cuda/wgmma.cuh"
#include "hpcdl/ops/conv2d/f32_parts.cuh"
#include "hpcdl/ops/conv2d/pixel_boxes.cuh"

namespace hpcdl::cuda {
namespace {

constexpr int kChannels = 64,
              kBlocksPerGroup = 3;  // channels per box; boxes of x side by side in one product of a warpgroup

/// kDown x kAcross warpgroups, each with 64 x 192 of dw; kDepth pixels per stage, in kOperandParts parts.
template <int kDown_, int kAcross_, int kDepth_, int kStages_, int kOperandParts_ = 1> struct WeightTile {
  static constexpr int kDown = kDown_, kAcross = kAcross_, kDepth = kDepth_, kStages = kStages_,
                       kOperandParts = kOperandParts_;
  static constexpr int kConsumers = kDown * kAcross, kThreads = 128 * (kConsumers + 1);
  static constexpr int kBlocks = kAcross * kBlocksPerGroup, kBoxes = kDown + kBlocks;
  static constexpr int kRows = kDown * kChannels;
  static constexpr int kBoxBytes = kDepth * kChannels * 2, kPartBytes = kBoxes * kBoxBytes,
                       kStageBytes = kOperandParts * kPartBytes;
  static_assert(kBoxes * kOperandParts <= kWarp);
  using Pixels = Channel<kStages, Warps<kConsumers * 4>, Reads::tensor_cores>;
  using Memory = Arena<Room<unsigned char, kStages * kStageBytes, 1024>, Stages<Pixels>>;
};
using Wide = WeightTile<1, 3, 32, 5>;  // all nine taps of 64 channels
using Square = WeightTile<2, 1, 64, 5>;
using WideParts = WeightTile<1, 2, 16, 5, kParts>;
using SquareParts = WeightTile<2, 1, 32, 3, kParts>;

struct WeightProblem {
  PixelBoxes boxes;  // of dy
  int stride, pad, dilation, kw, taps, inputs, outputs;
  int tap_blocks, tiles_n,
      share;  // boxes of channels per tap; tiles of dw side by side; boxes of pixels per share
  ConvResult out;
};

struct WeightMaps {
  TensorMap x, dy;
};

#if HPCDL_SM90A

/// The warp that loads boxes: each lane loads one box of a stage, of one part.
template <class S>
__device__ void produce(const WeightMaps& maps, const WeightProblem& p, const typename S::Memory& memory, int row0,
                        int block0, int begin, int end) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, part = lane / S::kBoxes, box = lane - part * S::kBoxes,
            block = block0 + box - S::kDown, tap = block / p.tap_blocks;
  const bool of_dy = box < S::kDown, exists = tap < p.taps;
  // Boxes after the last are outside in channels: zeros.
  const int channel_block = of_dy ? row0 / kChannels + box : exists ? block - tap * p.tap_blocks : p.tap_blocks;
  const int channel = (channel_block * S::kOperandParts + part) * kChannels;
  const int shift_h = exists ? tap / p.kw * p.dilation - p.pad : 0,
            shift_w = exists ? tap % p.kw * p.dilation - p.pad : 0;
  const auto pixels = memory.template part<1>();
  auto at = pixels.to_put();
  for (int i = begin; i < end; ++i, at.next()) {
    pixels.wait_empty(at);
    if (lane == 0) pixels.expect(at, S::kStageBytes);
    __syncwarp();
    if (part >= S::kOperandParts) continue;
    const auto b = PixelBox::of(p.boxes, i);
    unsigned char* to = memory.template part<0>() + at.stage * S::kStageBytes + lane * S::kBoxBytes;
    Barrier* full = pixels.full + at.stage;
    if (of_dy) tma_load(to, maps.dy, full, channel, b.w, b.h, b.n);
    else tma_load(to, maps.x, full, channel, b.w * p.stride + shift_w, b.h * p.stride + shift_h, b.n);
  }
}

template <class T, class S>
__device__ void consume(const WeightProblem& p, const typename S::Memory& memory, int group, int row0, int block0,
                        int steps) {
  constexpr int kColumns = kBlocksPerGroup * kChannels;
  const int thread = static_cast<int>(threadIdx.x) % 128, lane = thread % kWarp;
  const int down = group / S::kAcross, across = group % S::kAcross;
  // For parts, the sums of the products of first parts and of all others: those are at most 2^-8 of the former and are
  // rounded separately.
  constexpr int kProducts = S::kOperandParts == 1 ? 1 : kPartProducts;
  float acc[kColumns / 2], others[kProducts == 1 ? 4 : kColumns / 2];
  const auto pixels = memory.template part<1>();
  Ring<S::kStages> at;
  int before = -1;
  for (int i = 0; i < steps; ++i, at.next()) {
    pixels.get(at);
    const unsigned char* stage = memory.template part<0>() + at.stage * S::kStageBytes;
    const auto a = wgmma_descriptor<Major::mn>(stage + down * S::kBoxBytes, S::kDepth);
    const auto b = wgmma_descriptor<Major::mn>(stage + (S::kDown + across * kBlocksPerGroup) * S::kBoxBytes, S::kDepth);
    constexpr std::uint64_t kNextPart = S::kPartBytes >> 4;
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < S::kDepth / 16; ++k)
#pragma unroll
      for (int j = 0; j < kProducts; ++j) {
        const int of_a = kProducts == 1 ? 0 : part_of_a(j), of_b = kProducts == 1 ? 0 : part_of_b(j);
        const auto at_a = a + k * kStepMn + of_a * kNextPart, at_b = b + k * kStepMn + of_b * kNextPart;
        if constexpr (kProducts == 1) wgmma<T, Major::mn, Major::mn>(acc, at_a, at_b, k > 0 || i > 0);
        else if (j + 1 < kProducts) wgmma<T, Major::mn, Major::mn>(others, at_a, at_b, j > 0 || k > 0 || i > 0);
        else wgmma<T, Major::mn, Major::mn>(acc, at_a, at_b, k > 0 || i > 0);
      }
    wgmma_commit();
    wgmma_wait<1>();
    if (before >= 0) pixels.done(before);
    before = at.stage;
  }
  wgmma_wait<0>();
  wgmma_pin(acc);
  if constexpr (kProducts > 1) {
    wgmma_pin(others);
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) acc[i] += others[i];
  }
  ConvResult out = p.out;
  if (out.share_step) out.d = static_cast<float*>(out.d) + blockIdx.y * out.share_step;
  const std::int64_t columns = std::int64_t{p.taps} * p.inputs;
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
    const int block = block0 + across * kBlocksPerGroup + j / 8, tap = block / p.tap_blocks;
    const int channel = (block - tap * p.tap_blocks) * kChannels + j % 8 * 8 + lane % 4 * 2;  // an even number
    if (tap >= p.taps || channel >= p.inputs) continue;
    const int column = tap * p.inputs + channel;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row0 + down * kChannels + thread / kWarp * 16 + lane / 4 + half * 8;
      if (row < p.outputs)
        conv_detail::finish(out, row * columns + column, column, (tap + 1) * p.inputs, acc[j * 4 + half * 2],
                            acc[j * 4 + half * 2 + 1]);
    }
  }
}

#endif

template <class T, class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    weight_tiles(const __grid_constant__ WeightMaps maps, const __grid_constant__ WeightProblem p) {
#if HPCDL_SM90A
  constexpr int kProducerRegisters = 40,
                kConsumerRegisters = (65536 / 128 - kProducerRegisters) / S::kConsumers / 8 * 8;  // per thread
  const typename S::Memory memory;
  const int row0 = static_cast<int>(blockIdx.x) / p.tiles_n * S::kRows,
            block0 = static_cast<int>(blockIdx.x) % p.tiles_n * S::kBlocks;
  const int begin = static_cast<int>(blockIdx.y) * p.share, end = ::min(begin + p.share, p.boxes.count);
  memory.start(maps.x, maps.dy);
  roles<Producers<kProducerRegisters, 1, kWarp>, Consumers<S::kConsumers, kConsumerRegisters>>(
      [&](int) { produce<S>(maps, p, memory, row0, block0, begin, end); },
      [&](int group) { consume<T, S>(p, memory, group, row0, block0, end - begin); });
#endif
}

/// x and dy as the copy engine reads them: pixels of the given numbers of elements.
struct WeightOperands {
  const void *x, *dy;
  DType dtype;
  std::int64_t x_pixel, dy_pixel;
};

template <class T, class S>
void launch(Stream& s, const Conv& c, const WeightOperands& o, const WeightProblem& p, int shares) {
  allow_shared<weight_tiles<T, S>>(s, S::Memory::kBytes);
  const auto& g = c.shape;
  const auto& b = p.boxes;
  const int every = narrow_int(g.stride);
  const auto map_of = [&](const void* data, std::int64_t pixel, std::int64_t w, std::int64_t h, int step) {
    return tensor_map(data, o.dtype, {pixel, w, h, g.n}, {pixel, w * pixel, h * w * pixel}, {kChannels, b.w, b.h, b.n},
                      Swizzle::bytes128, {1, step, step, 1});
  };
  const WeightMaps maps{.x = map_of(o.x, o.x_pixel, g.w, g.h, every), .dy = map_of(o.dy, o.dy_pixel, g.ow, g.oh, 1)};
  const int tiles_m = tiles_of(g.o, S::kRows);
  weight_tiles<T, S><<<dim3(static_cast<unsigned>(tiles_m * p.tiles_n), static_cast<unsigned>(shares)), S::kThreads,
                       S::Memory::kBytes, queue(s)>>>(maps, p);
  launched("conv2d_backward");
}

template <class S> void run(Stream& s, const Conv& c, const WeightOperands& o) {
  const auto& g = c.shape;
  WeightProblem p{.boxes = boxes_of(g.oh, g.ow, g.n, S::kDepth, g.stride),
                  .stride = narrow_int(g.stride),
                  .pad = narrow_int(g.pad),
                  .dilation = narrow_int(g.dilation),
                  .kw = narrow_int(g.kw),
                  .taps = narrow_int(g.taps()),
                  .inputs = narrow_int(g.i),
                  .outputs = narrow_int(g.o),
                  .tap_blocks = tiles_of(g.i, kChannels),
                  .tiles_n = 1,
                  .share = 0,
                  .out = result_of(c, g.k())};
  p.tiles_n = tiles_of(p.taps * p.tap_blocks, S::kBlocks);
  const ConvSums sums{.c = c, .rows = g.o, .columns = g.k()};
  const int slots = multiprocessors(s);
  const ConvShares shares = conv_shares(tiles_of(g.o, S::kRows) * p.tiles_n, p.boxes.count, 1, slots,
                                        static_cast<int>(std::clamp<std::int64_t>(conv_parts_room(sums), 1, slots)));
  p.share = shares.depth;
  if (shares.count > 1) p.out = share_result(s, sums);
  p.out.pairs = p.out.pairs && g.i % 2 == 0;  // else those of a tap may begin with an odd element
  if constexpr (S::kOperandParts == 1) {
    if (o.dtype == DType::f16) launch<f16, S>(s, c, o, p, shares.count);
    else launch<bf16, S>(s, c, o, p, shares.count);
  } else {
    launch<bf16, S>(s, c, o, p, shares.count);
  }
  if (shares.count > 1) add_conv_shares(s, sums, shares.count);
}

/// The computed products of a tile, including wasted ones.
template <class S> double work(const Conv2dShape& g) {
  return static_cast<double>(whole_units(g.o, S::kRows)) *
         static_cast<double>(whole_units(g.taps() * tiles_of(g.i, kChannels), S::kBlocks));
}

}  // namespace

bool tile_weight(Stream& s, const Conv& c) {
  const auto& g = c.shape;
  const bool channels =
      g.i % 8 == 0 && g.o % 8 == 0 && whole_units(g.i, kChannels) * whole_units(g.o, kChannels) <= 2 * g.i * g.o;
  const bool there = in_chunks(c.x, c.compute, g.i) && in_chunks(c.dy, c.compute, g.o) &&
                     reinterpret_cast<std::uintptr_t>(c.out) % 8 == 0;
  if (c.compute == DType::f32 || !channels || !there || g.pixels() == 0 || g.stride > 8 || !has_sm90a(s)) return false;
  const WeightOperands operands{.x = c.x.data, .dy = c.dy.data, .dtype = c.compute, .x_pixel = g.i, .dy_pixel = g.o};
  // A stage of the wide tile loads 2.5 times as many bytes per product.
  if (work<Wide>(g) * 1.2 < work<Square>(g)) run<Wide>(s, c, operands);
  else run<Square>(s, c, operands);
  return true;
}

void tile_weight_in_parts(Stream& s, const Conv& c, const PartsOperands& parts) {
  const auto& g = c.shape;
  const WeightOperands operands{.x = parts.x,
                                .dy = parts.dy,
                                .dtype = DType::bf16,
                                .x_pixel = part_blocks(g.i) * kPartBlock,
                                .dy_pixel = part_blocks(g.o) * kPartBlock};
  if (work<WideParts>(g) * 1.2 < work<SquareParts>(g)) run<WideParts>(s, c, operands);
  else run<SquareParts>(s, c, operands);
}

}  // namespace hpcdl::cuda
