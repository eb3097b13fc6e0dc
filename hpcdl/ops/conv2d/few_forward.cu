// y of images with few channels (few_channels.h) in 16-bit types; f32 in parts is slower than on the CUDA cores
// (few_channels.cu). A warp multiplies 32 pixels x 64 filters. Pixels are the rows of the product, whose pairs of terms
// are read in place.

#include "hpcdl/cuda/mma.cuh"
#include "hpcdl/ops/conv2d/few_rows.cuh"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp, kBlocks = 4;  // per multiprocessor
constexpr int kFilters = 64, kProducts = kFilters / 8, kRowTiles = 2,
              kTurn = kRowTiles * 16;              // products of 16 pixels x 8 filters
constexpr int kStepWords = kProducts * 2 * kWarp;  // filter words for 16 terms
constexpr std::int64_t kMostBytes = 54 << 10;

struct FewForward {
  ImageRows rows;
  const void *x, *w;
  DType w_dtype;
  int filters, terms, steps, tiles;  // steps of 16 terms; tiles of y
  void* y;
  ConvOperand bias;
  bool accumulate;
};

/// The filter that column `column` of a product stands for, chosen such that a thread's columns, two per product, are
/// eight neighbours for every four products.
__device__ constexpr int filter_of(int product, int column) {
  return product / 4 * 32 + column / 2 * 8 + product % 4 * 2 + column % 2;
}

/// Stores filters in the register layout of the products: per step four times four words of each lane, two registers of
/// two products.
template <class T> __device__ void bring_filters(const FewForward& p, int filter0, unsigned* to) {
#pragma unroll 8
  for (int i = static_cast<int>(threadIdx.x); i < p.steps * kStepWords; i += kThreads) {
    const int word = i % 4, lane = i / 4 % kWarp, product = i / (4 * kWarp) % (kProducts / 2) * 2 + word / 2,
              step = i / kStepWords;
    const int filter = filter0 + filter_of(product, lane / 4);
    const TermPair pair = p.rows.pair(step * 8 + lane % 4 + word % 2 * 4);
    const auto value = [&](int k) {
      return unsigned{narrow<T>(fetch(p.w, p.w_dtype, std::int64_t{filter} * p.terms + pair.term + k)).bits};
    };
    const bool there = pair.term >= 0 && filter < p.filters;
    to[i] = (there ? value(0) : 0u) | (there && pair.mask >> 16 ? value(1) << 16 : 0u);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocks) few_forward_kernel(const __grid_constant__ FewForward p) {
  extern __shared__ __align__(16) unsigned memory[];
  unsigned *const filters = memory, *const image_rows = filters + p.steps * (kStepWords + 16);
  uint2* const pairs = reinterpret_cast<uint2*>(filters + p.steps * kStepWords);  // offset, mask
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp,
            filter0 = static_cast<int>(blockIdx.y) * kFilters;
  bring_filters<T>(p, filter0, filters);
  for (int i = thread; i < p.steps * 8; i += kThreads) {
    const TermPair pair = p.rows.pair(i);
    pairs[i] = make_uint2(static_cast<unsigned>(pair.at), pair.mask);
  }
  for (int tile = static_cast<int>(blockIdx.x); tile < p.tiles; tile += static_cast<int>(gridDim.x)) {
    const int image = p.rows.tiles(tile), row0 = (tile - image * p.rows.tiles.divisor()) * p.rows.rows,
              pixels = p.rows.pixels(row0);
    __syncthreads();  // all threads are done with the rows of the last tile
    bring_rows<T, kThreads>(p.rows, p.x, image, row0, image_rows);
    __syncthreads();
    T* const y = static_cast<T*>(p.y) + (std::int64_t{image} * p.rows.out_rows + row0) * p.rows.out_cols * p.filters;
    for (int first = warp * kTurn; first < pixels; first += kWarps * kTurn) {
      int window[kRowTiles][2];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          window[i][half] = p.rows.window(::min(first + i * 16 + half * 8 + lane / 4, pixels - 1));
      float acc[kRowTiles][kProducts][4] = {};
      for (int step = 0; step < p.steps; ++step) {
        const uint2 near = pairs[step * 8 + lane % 4], far = pairs[step * 8 + lane % 4 + 4];
        const uint4* const from = reinterpret_cast<const uint4*>(filters + step * kStepWords) + lane;
        unsigned a[kRowTiles][4];
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            a[i][half] = image_rows[window[i][half] + static_cast<int>(near.x)] & near.y;
            a[i][half + 2] = image_rows[window[i][half] + static_cast<int>(far.x)] & far.y;
          }
#pragma unroll
        for (int j = 0; j < kProducts; j += 2) {
          const uint4 b = from[j / 2 * kWarp];
#pragma unroll
          for (int i = 0; i < kRowTiles; ++i) {
            mma_16x8x16<T>(acc[i][j], a[i], b.x, b.y);
            mma_16x8x16<T>(acc[i][j + 1], a[i], b.z, b.w);
          }
        }
      }
#pragma unroll
      for (int j = 0; j < kProducts; j += 4) {
        const int filter = filter0 + filter_of(j, lane % 4 * 2);
        if (filter >= p.filters) continue;
        const auto bias =
            map<8>([&](int k) { return p.bias.data ? fetch(p.bias.data, p.bias.dtype, filter + k) : 0.0f; });
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int m = first + i * 16 + half * 8 + lane / 4;
            if (m >= pixels) continue;
            T* const to = y + std::int64_t{m} * p.filters + filter;
            auto v = map<8>([&](int k) { return acc[i][j + k / 2][half * 2 + k % 2]; }) + bias;
            if (p.accumulate) v = v + widen(read_aligned<8>(to));
            write_aligned(to, pack<T>(v));
          }
      }
    }
  }
}

template <class T> bool forward(Stream& s, const Conv& c) {
  const auto& g = c.shape;
  const int blocks_y = tiles_of(g.o, kFilters), slots = std::max(1, kBlocks * multiprocessors(s) / blocks_y);
  const int steps = tiles_of(ImageRows(g, 1).all_pairs(), 8);
  const auto bytes = [&](int rows) {
    return (std::int64_t{steps} * (kStepWords + 16) + ImageRows(g, rows).all_words()) * 4;
  };
  const int rows = rows_of_tiles(g, slots, kWarps * kTurn, kMostBytes, bytes);
  if (rows == 0) return false;
  const FewForward p{.rows = ImageRows(g, rows),
                     .x = c.x.data,
                     .w = c.w.data,
                     .w_dtype = c.w.dtype,
                     .filters = narrow_int(g.o),
                     .terms = narrow_int(g.k()),
                     .steps = steps,
                     .tiles = narrow_int(g.n * tiles_of(g.oh, rows)),
                     .y = c.out,
                     .bias = c.bias,
                     .accumulate = c.accumulate};
  const int shared = static_cast<int>(bytes(rows));
  check(cudaFuncSetAttribute(few_forward_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "conv2d");
  few_forward_kernel<T><<<dim3(static_cast<unsigned>(std::min(p.tiles, slots)), static_cast<unsigned>(blocks_y)),
                          kThreads, shared, queue(s)>>>(p);
  launched("conv2d");
  return true;
}

}  // namespace

bool few_forward(Stream& s, const Conv& c) {
  const bool fits = c.pass == ConvPass::forward && c.compute != DType::f32 && of_few_channels(c) &&
                    c.x.dtype == c.compute && c.out_dtype == c.compute &&
                    reinterpret_cast<std::uintptr_t>(c.out) % 16 == 0;
  if (!fits) return false;
  return c.compute == DType::bf16 ? forward<bf16>(s, c) : forward<f16>(s, c);
}

}  // namespace hpcdl::cuda
