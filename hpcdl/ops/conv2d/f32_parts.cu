#include "hpcdl/ops/conv2d/f32_parts.cuh"

#include <algorithm>

#include "hpcdl/cuda/arch.cuh"
#include "hpcdl/cuda/workspace.h"
#include "hpcdl/ops/conv2d/pixel_boxes.cuh"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 256, kChannels = 8;  // per thread

/// `rows` rows of `channels` f32; at most 2^31 bytes in total.
struct InParts {
  const float* from = nullptr;
  void* to = nullptr;
  std::int64_t rows = 0, channels = 0;
};

struct Writing {
  const float* from;
  uint4* to;  // eight channels of a part per element
  unsigned count, blocks, channels;
  bool aligned;
};

Writing writing(const InParts& p) {
  const auto blocks = static_cast<unsigned>(part_blocks(p.channels));
  return {p.from,
          static_cast<uint4*>(p.to),
          static_cast<unsigned>(p.rows) * blocks * (kPartChannels / kChannels),
          blocks,
          static_cast<unsigned>(p.channels),
          p.channels % 4 == 0 && reinterpret_cast<std::uintptr_t>(p.from) % 16 == 0};
}

struct Writings {
  Writing of[3];
  unsigned first[3];  // first block of each
};

__global__ void __launch_bounds__(kThreads) parts(const __grid_constant__ Writings all) {
  const int which = blockIdx.x >= all.first[2] ? 2 : blockIdx.x >= all.first[1] ? 1 : 0;
  const Writing w = all.of[which];
  const unsigned i = (blockIdx.x - all.first[which]) * kThreads + threadIdx.x;
  if (i >= w.count) return;
  constexpr unsigned kPer = kPartChannels / kChannels;
  const unsigned chunk = i % kPer, block = i / kPer, row = block / w.blocks,
                 channel = (block - row * w.blocks) * kPartChannels + chunk * kChannels;
  const float* from = w.from + static_cast<std::size_t>(row) * w.channels + channel;
  float4 v[2] = {};
#pragma unroll
  for (int k = 0; k < 2; ++k)
    if (channel + k * 4 < w.channels) {
      const float* at = from + k * 4;
      const unsigned left = w.channels - channel - k * 4;
      v[k] = w.aligned ? *reinterpret_cast<const float4*>(at)
                       : make_float4(at[0], left > 1 ? at[1] : 0, left > 2 ? at[2] : 0, left > 3 ? at[3] : 0);
    }
  const float values[kChannels] = {v[0].x, v[0].y, v[0].z, v[0].w, v[1].x, v[1].y, v[1].z, v[1].w};
  unsigned out[kParts][kChannels / 2];
#pragma unroll
  for (int k = 0; k < kChannels; k += 2) {
    unsigned word[kParts];
    pair_in_parts(values[k], values[k + 1], word);
#pragma unroll
    for (int p = 0; p < kParts; ++p) out[p][k / 2] = word[p];
  }
  uint4* to = w.to + static_cast<std::size_t>(block) * (kPartBlock / kChannels) + chunk;
#pragma unroll
  for (unsigned p = 0; p < kParts; ++p) to[p * kPer] = make_uint4(out[p][0], out[p][1], out[p][2], out[p][3]);
}

std::int64_t padded_channels(std::int64_t n) { return whole_units(n, kPartChannels); }

/// The number of computed products per useful product. A gradient of images of 16 to 64 channels does not count its
/// columns, of which other kernels waste as many.
double waste(const Conv& c) {
  const auto& g = c.shape;
  const auto of_channels = [](std::int64_t n) {
    return static_cast<double>(padded_channels(n)) / static_cast<double>(n);
  };
  const double inputs = c.pass == ConvPass::data && g.i >= 16 && g.i <= kPartChannels ? 1 : of_channels(g.i);
  const double pixels =
      static_cast<double>(boxes_of(g.oh, g.ow, g.n, 128, g.stride).count) * 128 / static_cast<double>(g.pixels());
  return inputs * of_channels(g.o) * pixels;
}

bool fits(Stream& s, const Conv& c) {
  const auto& g = c.shape;
  const auto f32 = [](const ConvOperand& o) { return o.dtype == DType::f32; };
  if (c.compute != DType::f32 || c.out_dtype != DType::f32) return false;
  const bool operands = (c.pass == ConvPass::data || f32(c.x)) && (c.pass == ConvPass::weight || f32(c.w)) &&
                        (c.pass == ConvPass::forward || f32(c.dy));
  constexpr double kLeast = 1 << 23;  // flops; below this, the launches take longer than the product
  return operands && g.stride <= (c.pass == ConvPass::data ? 2 : 8) && g.flops() >= kLeast && waste(c) <= 2 &&
         has_sm90a(s) && part_bytes(g.o * g.taps(), g.i) <= static_cast<std::int64_t>(kConvWeightBytes);
}

const float* image(const ConvOperand& o, std::int64_t first, std::int64_t elements) {
  return static_cast<const float*>(o.data) + first * elements;
}

constexpr std::int64_t kAligned = 1024;

/// The workspace that images take, in bytes, and the number of images that fit at a time: batches of equal size, or
/// nearly so.
struct Room {
  std::int64_t x_image = 0, dy_image = 0, images = 0;
  Room(const Conv2dShape& g, bool of_x, bool of_dy) {
    if (of_x) x_image = part_bytes(g.h * g.w, g.i);
    if (of_dy) dy_image = part_bytes(g.oh * g.ow, g.o);
    const std::int64_t most = (static_cast<std::int64_t>(kWorkspaceBytes) - kAligned) / (x_image + dy_image);
    if (most == 0) return;
    const std::int64_t times = (g.n + most - 1) / most;
    images = (g.n + times - 1) / times;
  }
};

void write_parts(Stream& s, const InParts (&operands)[3]) {
  Writings w;
  unsigned blocks = 0;
  for (int i = 0; i < 3; ++i) {
    w.of[i] = writing(operands[i]), w.first[i] = blocks;
    blocks += blocks_for(w.of[i].count, kThreads);
  }
  parts<<<blocks, kThreads, 0, queue(s)>>>(w);
  launched("parts of a convolution's operands");
}

}  // namespace

bool conv_in_parts(Stream& s, std::span<const Conv> passes) {
  bool of_x = false, of_dy = false, of_w = false;
  for (const Conv& c : passes) {
    if (!fits(s, c)) return false;
    of_x |= c.pass != ConvPass::data, of_dy |= c.pass != ConvPass::forward, of_w |= c.pass != ConvPass::weight;
  }
  const Conv& any = passes[0];
  const auto& g = any.shape;
  const Room room(g, of_x, of_dy);
  if (room.images == 0) return false;
  auto* const weights = static_cast<std::byte*>(workspace(s));
  auto* const memory = static_cast<std::byte*>(workspace(s, 1));
  for (std::int64_t first = 0; first < g.n; first += room.images) {
    const std::int64_t n = std::min(room.images, g.n - first);
    const PartsOperands parts{.x = memory, .w = weights, .dy = memory + whole_units(room.x_image * n, kAligned)};
    const InParts in_x{.from = image(any.x, first, of_x ? g.h * g.w * g.i : 0),
                       .to = memory,
                       .rows = of_x ? n * g.h * g.w : 0,
                       .channels = g.i};
    const InParts in_dy{.from = image(any.dy, first, of_dy ? g.oh * g.ow * g.o : 0),
                        .to = const_cast<void*>(parts.dy),
                        .rows = of_dy ? n * g.oh * g.ow : 0,
                        .channels = g.o};
    const InParts in_w{.from = static_cast<const float*>(any.w.data),
                       .to = weights,
                       .rows = of_w && first == 0 ? g.o * g.taps() : 0,
                       .channels = g.i};
    write_parts(s, {in_x, in_dy, in_w});
    for (Conv c : passes) {
      c.shape.n = n;
      if (c.pass == ConvPass::weight) {
        c.accumulate |= first > 0;
        tile_weight_in_parts(s, c, parts);
      } else {
        c.out =
            static_cast<float*>(c.out) + first * (c.pass == ConvPass::forward ? g.oh * g.ow * g.o : g.h * g.w * g.i);
        tiles_in_parts(s, c, parts);
      }
    }
  }
  return true;
}

}  // namespace hpcdl::cuda
