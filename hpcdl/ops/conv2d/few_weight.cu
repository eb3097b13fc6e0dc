// dw of images with few channels (few_channels.h), in 16-bit types or f32 in three bf16 parts (f32_parts.h): 64 filters
// x all terms per block, with pixels as the depth. Asynchronous copies load 64 pixels of dy at a time; the rows of x
// that a tile reads are in shared memory, where pairs of terms are read pixel by pixel and transposed for the product.

#include "hpcdl/cuda/async_copy.cuh"
#include "hpcdl/cuda/mma.cuh"
#include "hpcdl/ops/conv2d/few_rows.cuh"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kFilters = 64, kRowTiles = kFilters / 16, kPixels = 64;  // pixels per stage

template <class T> inline constexpr int kStages = sizeof(T) == 2 ? 4 : 3;
template <class T> inline constexpr int kStageBytes = kPixels * kFilters * static_cast<int>(sizeof(T));
template <class T> inline constexpr int kBlocks = sizeof(T) == 2 ? 3 : 2;  // per multiprocessor
template <class T> inline constexpr std::int64_t kMostBytes = (216 / kBlocks<T>) << 10;

struct FewWeight {
  ImageRows rows;
  const void *x, *dy;
  int filters, terms, tiles;
  float* shares;
  std::int64_t share_step;
};

/// Transposes an 8 x 8 matrix of 16-bit elements.
__device__ inline unsigned turned(unsigned v) {
  unsigned r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
  return r;
}

/// The pixels that a block processes, tile by tile, in stages.
struct Stages {
  const FewWeight& p;
  int tile, first = 0, pixels = 0;  // tile; first pixel in it; pixels of the tile
  std::int64_t at = 0;              // offset in y
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

/// Position of the 16-byte piece `piece` of pixel m of a stage, chosen such that a warp's simultaneous reads use
/// different banks.
template <class T> __device__ int place_of(int m, int piece) {
  if constexpr (sizeof(T) == 2) return m * 128 + (piece ^ m % 8) * 16;
  else return m * 256 + (piece ^ m / 2 % 4 * 2) * 16;
}

/// Loads 16 filters x 16 pixels of a stage, from filter `row` and pixel `first` on, in the products' register layout.
template <class T>
__device__ void load_gradient(unsigned (&a)[Way<T>::kOperandParts][4], const unsigned char* stage, int row, int first,
                              int lane) {
  if constexpr (sizeof(T) == 2) {
    conv_detail::load_matrices<false>(a[0],
                                      stage + place_of<T>(first + lane / 16 * 8 + lane % 8, row / 8 + lane / 8 % 2));
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int filter = row + lane / 4 + k % 2 * 8, m = first + lane % 4 * 2 + k / 2 * 8,
                at = place_of<T>(m, filter / 4) + filter % 4 * 4;
      unsigned word[kParts];
      pair_in_parts(*reinterpret_cast<const float*>(stage + at), *reinterpret_cast<const float*>(stage + at + 256),
                    word);
#pragma unroll
      for (int part = 0; part < kParts; ++part) a[part][k] = word[part];
    }
  }
}

/// kTiles x 8 terms per warp. kSide warps cover adjacent terms; the pixels of a stage are divided among kWarps / kSide
/// such groups.
template <class T, int kTiles, int kSide>
__global__ void __launch_bounds__(kThreads, kBlocks<T>) few_weight_kernel(const __grid_constant__ FewWeight p) {
  using W = Way<T>;
  constexpr int kDeep = kWarps / kSide, kPieces = kFilters * static_cast<int>(sizeof(T)) / 16;
  extern __shared__ __align__(16) unsigned char memory[];
  int* const windows = reinterpret_cast<int*>(memory + kStages<T> * kStageBytes<T>);  // windows of the pixels of a tile
  unsigned* const image_rows = reinterpret_cast<unsigned*>(windows) + p.rows.rows * p.rows.out_cols;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp,
            filter0 = static_cast<int>(blockIdx.y) * kFilters;
  const int side = warp % kSide, deep = warp / kSide;
  for (int m = thread; m < p.rows.rows * p.rows.out_cols; m += kThreads) windows[m] = p.rows.window(m);
  TermPair pairs[kTiles];
#pragma unroll
  for (int j = 0; j < kTiles; ++j) pairs[j] = p.rows.pair((side * kTiles + j) * 4 + lane % 4);

  const auto bring = [&](const Stages& from, int stage) {
    if (from.more())
#pragma unroll
      for (int i = thread; i < kPixels * kPieces; i += kThreads) {
        const int m = i / kPieces, piece = i % kPieces, filter = filter0 + piece * (kFilters / kPieces);
        const bool there = from.first + m < from.pixels && filter < p.filters;
        copy_16(memory + stage * kStageBytes<T> + place_of<T>(m, piece),
                static_cast<const T*>(p.dy) + (there ? (from.at + from.first + m) * p.filters + filter : 0), there);
      }
    copies_issued();
  };
  Stages coming(p, static_cast<int>(blockIdx.x));
  for (int i = 0; i < kStages<T> - 1; ++i) {
    bring(coming, i);
    if (coming.more()) coming.next();
  }
  const int words = p.rows.all_words();
  float acc[kRowTiles][kTiles][4] = {},
        others[W::kProducts == 1 ? 1 : kRowTiles][kTiles][4] = {};  // of first parts, and of the others
  int stage = 0;
  for (Stages now(p, static_cast<int>(blockIdx.x)); now.more(); now.next(), stage = (stage + 1) % kStages<T>) {
    copies_arrived<kStages<T> - 2>();
    __syncthreads();  // this stage has arrived for all threads, and all are done with the last one and its rows
    bring(coming, (stage + kStages<T> - 1) % kStages<T>);
    if (coming.more()) coming.next();
    if (now.first == 0) {
      bring_rows<T, kThreads>(p.rows, p.x, now.image(), now.row0(), image_rows);
      __syncthreads();
    }
#pragma unroll
    for (int step = deep; step < kPixels / 16; step += kDeep) {
      unsigned b[W::kOperandParts][kTiles][2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int m = now.first + step * 16 + half * 8 + lane / 4;
        const unsigned there = m < now.pixels ? 0xffffffffu : 0u;
        const unsigned* const window = image_rows + windows[there ? m : 0];
#pragma unroll
        for (int part = 0; part < W::kOperandParts; ++part)
#pragma unroll
          for (int j = 0; j < kTiles; ++j)
            b[part][j][half] = turned(window[part * words + pairs[j].at] & pairs[j].mask & there);
      }
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        unsigned a[W::kOperandParts][4];
        load_gradient<T>(a, memory + stage * kStageBytes<T>, i * 16, step * 16, lane);
#pragma unroll
        for (int k = 0; k < W::kProducts; ++k)
#pragma unroll
          for (int j = 0; j < kTiles; ++j) {
            auto& sums = k + 1 < W::kProducts ? others[W::kProducts == 1 ? 0 : i][j] : acc[i][j];
            mma_16x8x16<typename W::Element>(sums, a[W::of_a(k)], b[W::of_b(k)][j][0], b[W::of_b(k)][j][1]);
          }
      }
    }
  }
  // Adds the sums of all warps that divide the pixels, in their order.
  constexpr int kSums = kRowTiles * kTiles * 4;
  float* const sums = reinterpret_cast<float*>(memory);
  static_assert((kDeep - 1) * kSide * kWarp * kSums * 4 <= kStages<T> * kStageBytes<T>);
  float* const all = &acc[0][0][0];
  if constexpr (W::kProducts > 1)
#pragma unroll
    for (int k = 0; k < kSums; ++k) all[k] += (&others[0][0][0])[k];
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
  const ConvSums sums{.c = c, .rows = g.o, .columns = g.k()};
  const int blocks_y = tiles_of(g.o, kFilters);
  const int slots = static_cast<int>(
      std::min<std::int64_t>(std::max(1, kBlocks<T> * multiprocessors(s) / blocks_y), conv_parts_room(sums)));
  const auto bytes = [&](int rows) {
    return kStages<T> * kStageBytes<T> + (rows * g.ow + Way<T>::kOperandParts * ImageRows(g, rows).all_words()) * 4;
  };
  const int rows = slots > 0 ? rows_of_tiles(g, slots, kPixels, kMostBytes<T>, bytes) : 0;
  if (rows == 0) return false;
  const FewWeight p{.rows = ImageRows(g, rows),
                    .x = c.x.data,
                    .dy = c.dy.data,
                    .filters = narrow_int(g.o),
                    .terms = narrow_int(g.k()),
                    .tiles = narrow_int(g.n * tiles_of(g.oh, rows)),
                    .shares = conv_parts(s),
                    .share_step = sums.size()};
  const auto kernel = few_weight_kernel<T, kTiles, kSide>;
  const int shared = static_cast<int>(bytes(rows)), shares = std::min(p.tiles, slots);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "conv2d_backward");
  kernel<<<dim3(static_cast<unsigned>(shares), static_cast<unsigned>(blocks_y)), kThreads, shared, queue(s)>>>(p);
  launched("conv2d_backward");
  add_conv_shares(s, sums, shares);
  return true;
}

template <class T> bool weight(Stream& s, const Conv& c) {
  const int tiles = tiles_of(ImageRows(c.shape, 1).all_pairs(), 4);  // tiles of eight terms
  if (tiles <= 4) return weight<T, 4, 1>(s, c);
  if constexpr (sizeof(T) == 2)
    if (tiles <= 20) return weight<T, 5, 4>(s, c);
  return false;
}

}  // namespace

bool few_weight(Stream& s, const Conv& c) {
  bool done = false;
  if (c.pass == ConvPass::weight && of_few_channels(c) && c.x.dtype == c.compute &&
      in_chunks(c.dy, c.compute, c.shape.o))
    visit_dtype(c.compute, [&]<class T>() { done = weight<T>(s, c); });
  return done;
}

}  // namespace hpcdl::cuda
