// dw of images of few channels (few_channels.h): 64 filters x all terms to a block, pixels are the depth. Of dy the copies in flight bring 64 pixels at a time; of x what the
// rows of a tile read lies in shared memory, where pairs of terms are read pixel by pixel and turned around on their way into a product.

#include "hpcdl/cuda/async_copy.h"
#include "hpcdl/ops/conv2d/few_rows.h"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kFilters = 64, kRowTiles = kFilters / 16, kPixels = 64, kStages = 4, kStageBytes = kPixels * kFilters * 2;  // pixels to a stage
constexpr std::int64_t kMostBytes = 72 << 10;

struct FewWeight {
  ImageRows rows;
  const void *x, *dy;
  int filters, terms, tiles;
  float* shares;
  std::int64_t share_step;
};

/// An 8 x 8 matrix of 16-bit elements, with columns for rows.
__device__ inline unsigned turned(unsigned v) {
  unsigned r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
  return r;
}

/// The pixels that a block takes, tile by tile, in stages.
struct Stages {
  const FewWeight& p;
  int tile, first = 0, pixels = 0;  // pixel of the tile; of the tile
  std::int64_t at = 0;              // of y
  __device__ Stages(const FewWeight& problem, int begin) : p(problem), tile(begin) { open(); }
  __device__ bool more() const { return tile < p.tiles; }
  __device__ int image() const { return p.rows.tiles(tile); }
  __device__ int row0() const { return (tile - image() * p.rows.tiles.divisor()) * p.rows.rows; }
  __device__ void open() {
    if (!more()) return;
    first = 0, pixels = p.rows.pixels(row0());
    at = (std::int64_t{image()} * p.rows.out_rows + row0()) * p.rows.out_cols;
  }
  __device__ void next() {
    if ((first += kPixels) >= pixels) tile += static_cast<int>(gridDim.x), open();
  }
};

/// kTiles x 8 terms to a warp. kSide warps have terms beside each other; the pixels of a stage are shared among kWarps / kSide such.
template <class T, int kTiles, int kSide> __global__ void __launch_bounds__(kThreads, 3) few_weight_kernel(const __grid_constant__ FewWeight p) {
  constexpr int kDeep = kWarps / kSide;
  extern __shared__ __align__(16) unsigned char memory[];
  int* const windows = reinterpret_cast<int*>(memory + kStages * kStageBytes);  // of the pixels of a tile
  unsigned* const image_rows = reinterpret_cast<unsigned*>(windows) + p.rows.rows * p.rows.out_cols;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp, filter0 = static_cast<int>(blockIdx.y) * kFilters;
  const int side = warp % kSide, deep = warp / kSide;
  for (int m = thread; m < p.rows.rows * p.rows.out_cols; m += kThreads) windows[m] = p.rows.window(m);
  TermPair pairs[kTiles];
#pragma unroll
  for (int j = 0; j < kTiles; ++j) pairs[j] = p.rows.pair((side * kTiles + j) * 4 + lane % 4);

  // Rows of a stage are pixels of eight pieces of 16 bytes, piece c of pixel m at c ^ m % 8.
  const auto bring = [&](const Stages& from, int stage) {
    if (from.more())
#pragma unroll
      for (int i = thread; i < kStageBytes / 16; i += kThreads) {
        const int m = i / 8, piece = i % 8;
        const bool there = from.first + m < from.pixels && filter0 + piece * 8 < p.filters;
        const T* const at = static_cast<const T*>(p.dy) + (there ? (from.at + from.first + m) * p.filters + filter0 + piece * 8 : 0);
        copy_16(memory + stage * kStageBytes + m * 128 + (piece ^ m % 8) * 16, at, there);
      }
    copies_issued();
  };
  Stages coming(p, static_cast<int>(blockIdx.x));
  for (int i = 0; i < kStages - 1; ++i) {
    bring(coming, i);
    if (coming.more()) coming.next();
  }
  float acc[kRowTiles][kTiles][4] = {};
  int stage = 0;
  for (Stages now(p, static_cast<int>(blockIdx.x)); now.more(); now.next(), stage = (stage + 1) % kStages) {
    copies_arrived<kStages - 2>();
    __syncthreads();  // this stage is there for all, and all are done with the last one and its rows
    bring(coming, (stage + kStages - 1) % kStages);
    if (coming.more()) coming.next();
    if (now.first == 0) {
      bring_rows<kThreads>(p.rows, p.x, now.image(), now.row0(), image_rows);
      __syncthreads();
    }
#pragma unroll
    for (int step = deep; step < kPixels / 16; step += kDeep) {
      unsigned b[kTiles][2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int m = now.first + step * 16 + half * 8 + lane / 4;
        const unsigned there = m < now.pixels ? 0xffffffffu : 0u;
        const unsigned* const window = image_rows + windows[there ? m : 0];
#pragma unroll
        for (int j = 0; j < kTiles; ++j) b[j][half] = turned(window[pairs[j].at] & pairs[j].mask & there);
      }
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        unsigned a[4];
        const int m = step * 16 + lane / 16 * 8 + lane % 8, piece = i * 2 + lane / 8 % 2;
        conv_detail::load_matrices<false>(a, memory + stage * kStageBytes + m * 128 + (piece ^ m % 8) * 16);
#pragma unroll
        for (int j = 0; j < kTiles; ++j) conv_detail::multiply<T>(acc[i][j], a, b[j][0], b[j][1]);
      }
    }
  }
  // The sums of all warps that share pixels, in their order.
  constexpr int kSums = kRowTiles * kTiles * 4;
  float* const sums = reinterpret_cast<float*>(memory);
  static_assert((kDeep - 1) * kSide * kWarp * kSums * 4 <= kStages * kStageBytes);
  float* const all = &acc[0][0][0];
  if constexpr (kDeep > 1) {
    copies_arrived<0>();
    __syncthreads();
    if (deep > 0)
#pragma unroll
      for (int k = 0; k < kSums; ++k) sums[(((deep - 1) * kSums + k) * kSide + side) * kWarp + lane] = all[k];
    __syncthreads();
    if (deep > 0) return;
    for (int d = 0; d < kDeep - 1; ++d)
#pragma unroll
      for (int k = 0; k < kSums; ++k) all[k] += sums[((d * kSums + k) * kSide + side) * kWarp + lane];
  }
  float* const to = p.shares + blockIdx.x * p.share_step;
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    const int term = pairs[j].term, count = term < 0 ? 0 : pairs[j].mask >> 16 ? 2 : 1;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int filter = filter0 + i * 16 + half * 8 + lane / 4;
        if (filter >= p.filters) continue;
        float* const at = to + std::int64_t{filter} * p.terms + term;
        if (count > 0) at[0] = acc[i][j][half * 2];
        if (count > 1) at[1] = acc[i][j][half * 2 + 1];
      }
  }
}

template <class T, int kTiles, int kSide> bool weight(Stream& s, const Conv& c) {
  const auto& g = c.shape;
  const ConvSums sums{.c = c, .rows = g.o, .columns = g.k(), .from_columns = g.k()};
  const int blocks_y = tiles_of(g.o, kFilters);
  const int slots = static_cast<int>(std::min<std::int64_t>(std::max(1, 3 * multiprocessors(s) / blocks_y), conv_parts_room(sums)));
  const auto bytes = [&](int rows) { return kStages * kStageBytes + (rows * g.ow + ImageRows(g, rows).all_words()) * 4; };
  const int rows = slots > 0 ? rows_of_tiles(g, slots, kPixels, kMostBytes, bytes) : 0;
  if (rows == 0) return false;
  const FewWeight p{.rows = ImageRows(g, rows), .x = c.x.data, .dy = c.dy.data, .filters = narrow_int(g.o), .terms = narrow_int(g.k()),
                    .tiles = narrow_int(g.n * tiles_of(g.oh, rows)), .shares = conv_parts(s), .share_step = sums.size()};
  const auto kernel = few_weight_kernel<T, kTiles, kSide>;
  const int shared = static_cast<int>(bytes(rows)), shares = std::min(p.tiles, slots);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "conv2d_backward");
  kernel<<<dim3(static_cast<unsigned>(shares), static_cast<unsigned>(blocks_y)), kThreads, shared, queue(s)>>>(p);
  launched("conv2d_backward");
  add_conv_shares(s, sums, shares);
  return true;
}

template <class T> bool weight(Stream& s, const Conv& c) {
  const int tiles = tiles_of(ImageRows(c.shape, 1).all_pairs(), 4);  // of eight terms
  if (tiles <= 4) return weight<T, 4, 1>(s, c);
  if (tiles <= 20) return weight<T, 5, 4>(s, c);
  return false;
}

}  // namespace

bool few_weight(Stream& s, const Conv& c) {
  if (c.pass != ConvPass::weight || c.compute == DType::f32 || !of_few_channels(c.shape) || c.x.dtype != c.compute || !in_chunks(c.dy, c.compute, c.shape.o)) return false;
  return c.compute == DType::bf16 ? weight<bf16>(s, c) : weight<f16>(s, c);
}

}  // namespace hpcdl::cuda
