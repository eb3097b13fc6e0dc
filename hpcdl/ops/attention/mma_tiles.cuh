#pragma once
// Tiles of heads in shared memory and their products by mma.sync of sm_80 and later (.cu files), for mma_forward.h and
// mma_backward.h. A block has four warps, each with kM times 16 rows of one side; tiles of the other side pass through
// shared memory. A product is one of four kinds:
//   bf16, f16  m16n8k16 of unchanged operands
//   TwoParts   m16n8k8 of TF32: an f32 is split into 11 bits, rounded to nearest, and the rest; of the four products
//              of two such numbers the three larger ones are computed (docs/numerics.md)
//   Tf32       m16n8k8 of f32 operands rounded to TF32
// Sums are f32. The order of elements along k or n does not matter as long as both operands, or the results, agree; f32
// tiles, which no load can transpose, make use of that.

#include "hpcdl/cuda/async_copy.cuh"
#include "hpcdl/cuda/relative_exp.cuh"
#include "hpcdl/cuda/warpgroup.cuh"
#include "hpcdl/ops/attention/far_rows.cuh"
#include "hpcdl/ops/attention/problem.cuh"
#include "hpcdl/ops/attention/softmax_rows.cuh"

namespace hpcdl::cuda::mma {

inline constexpr int kThreads = 128;

struct TwoParts {
  using Element = float;
};
struct Tf32 {
  using Element = float;
};
template <class T> struct Bits16 {
  using Element = T;
};
template <class Kind> using Element = typename Kind::Element;
template <class Kind> inline constexpr bool kF32 = std::is_same_v<Element<Kind>, float>;

// ---------------------------------------------------------------- products

/// d (16, 8) += a (16, 8) b (8, 8). With g = lane / 4 and q = lane % 4 a thread has a of (g, q), (g + 8, q), (g, q +
/// 4), (g + 8, q + 4), b of (q, g), (q + 4, g), d of (g, 2 q), (g, 2 q + 1), (g + 8, 2 q), (g + 8, 2 q + 1).
__device__ inline void product_tf32(float* d, const unsigned* a, const unsigned* b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/// The same for 16 of k: two neighbours along k share a register.
template <class T> __device__ void product_16(float* d, const unsigned* a, const unsigned* b) {
#define HPCDL_PRODUCT(kind)                                        \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." kind "." kind       \
      ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])             \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
  if constexpr (std::is_same_v<T, f16>) HPCDL_PRODUCT("f16");
  else HPCDL_PRODUCT("bf16");
#undef HPCDL_PRODUCT
}

/// A thread's part of an operand, 16 along k: 16 rows of A, or two times 8 columns of B. f32: [k / 8][4] for A, [column
/// / 8][k / 8][2] for B.
template <class Kind> struct Fragment {
  static constexpr int kCount = kF32<Kind> ? 8 : 4;
  unsigned high[kCount], low[std::is_same_v<Kind, TwoParts> ? kCount : 1];

  __device__ void set(int i, float x) {
    if constexpr (std::is_same_v<Kind, TwoParts>) {
      high[i] = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
      low[i] = __float_as_uint(x - __uint_as_float(high[i]));
    } else {
      high[i] = __float_as_uint(x * (1 + 0x1p-11f));  // tensor cores truncate the lower 13 bits; NaN stays NaN
    }
  }
  __device__ void set(int first, const unsigned (&raw)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kF32<Kind>) set(first + i, __uint_as_float(raw[i]));
      else high[first + i] = raw[i];
    }
  }
};

/// d[m] of two tiles of 8 columns += a[m] b. The small products come first, with as few consecutive additions to the
/// same sums as possible.
template <class Kind, int kM, int kCount>
__device__ void multiply(float (&d)[kM][kCount], int pair, const Fragment<Kind> (&a)[kM], const Fragment<Kind>& b) {
  const auto all = [&](auto&& one) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int j = 0; j < 2; ++j) one(d[m] + (2 * pair + j) * 4, a[m], j);
  };
  if constexpr (!kF32<Kind>) {
    all([&](float* to, const auto& x, int j) { product_16<Element<Kind>>(to, x.high, b.high + 2 * j); });
  } else {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      if constexpr (std::is_same_v<Kind, TwoParts>) {
        all([&](float* to, const auto& x, int j) { product_tf32(to, x.low + 4 * k, b.high + 4 * j + 2 * k); });
        all([&](float* to, const auto& x, int j) { product_tf32(to, x.high + 4 * k, b.low + 4 * j + 2 * k); });
      }
      all([&](float* to, const auto& x, int j) { product_tf32(to, x.high + 4 * k, b.high + 4 * j + 2 * k); });
    }
  }
}

// ---------------------------------------------------------------- tiles

/// Rows of kWidth elements, 16 bytes apart in banks: one load of a warp reads 32 different banks.
template <class Kind, int kWidth> struct Tile {
  using E = Element<Kind>;
  static constexpr int kChunk = 16 / static_cast<int>(sizeof(E)), kStride = kWidth + kChunk,
                       kRowBytes = kStride * static_cast<int>(sizeof(E));
  E* data;

  __device__ Tile behind(int rows) const { return {data + rows * kStride}; }
  /// Loads rows [first, first + kRows), which lie in one page, of head h of sequence b, with zeros from row `end` and column `width` on.
  /// `copies`: x has this type and consists of whole pieces.
  template <int kRows>
  __device__ void bring(const auto& x, int b, int first, int end, int h, int width, bool copies) const {
    constexpr int kPerRow = kWidth / kChunk;
    if (copies) {
      static_assert(kRows * kPerRow % kThreads == 0);
      const E* const from = static_cast<const E*>(x.data) + x.at(b, first, h);
#pragma unroll
      for (int c = 0; c < kRows * kPerRow / kThreads; ++c) {
        const int i = c * kThreads + static_cast<int>(threadIdx.x), r = i / kPerRow, d = i % kPerRow * kChunk;
        const bool there = first + r < end && d < width;
        copy_16(data + r * kStride + d, from + (there ? r * x.token + d : 0), there);
      }
    } else {
      for (int i = static_cast<int>(threadIdx.x); i < kRows * kWidth; i += kThreads) {
        const int r = i / kWidth, d = i % kWidth;
        data[r * kStride + d] = narrow<E>(first + r < end && d < width ? value_of(x, b, first + r, h, d) : 0.0f);
      }
    }
  }
  /// The same for codes, without their scales, whose rows are whole pieces.
  template <int kRows>
  __device__ void bring_codes(const PagedHeads& x, int b, int first, int end, int h, int width) const {
    constexpr int kCodes = 16, kPerRow = kWidth / kCodes, kEach = kRows * kPerRow / kThreads;
    static_assert(!kF32<Kind> && kRows * kPerRow % kThreads == 0);
    const char* const from = static_cast<const char*>(x.data) + x.at(b, first, h);
    uint4 raw[kEach];
    const auto row = [](int c) { return (c * kThreads + static_cast<int>(threadIdx.x)) / kPerRow; };
    const auto column = [](int c) { return (c * kThreads + static_cast<int>(threadIdx.x)) % kPerRow * kCodes; };
#pragma unroll
    for (int c = 0; c < kEach; ++c) {
      raw[c] = make_uint4(0, 0, 0, 0);
      if (first + row(c) < end && column(c) < width)
        raw[c] = *reinterpret_cast<const uint4*>(from + row(c) * x.token + column(c));
    }
    const auto put = [&]<class K>() {
#pragma unroll
      for (int c = 0; c < kEach; ++c) {
        const uint2 a = pairs_of_codes<E, K>(raw[c].x), b2 = pairs_of_codes<E, K>(raw[c].y),
                    c2 = pairs_of_codes<E, K>(raw[c].z), d2 = pairs_of_codes<E, K>(raw[c].w);
        auto* const to = reinterpret_cast<uint4*>(data + row(c) * kStride + column(c));
        to[0] = make_uint4(a.x, a.y, b2.x, b2.y), to[1] = make_uint4(c2.x, c2.y, d2.x, d2.y);
      }
    };
    if (x.dtype == DType::i8) put.template operator()<std::int8_t>();
    else put.template operator()<f8_e4m3>();
  }
  __device__ unsigned address(int row, int column) const { return shared_address(data + row * kStride + column); }
};

/// s[m] += (16 rows of a from row0 + 16 m on) . (rows of b), four results per 8 rows of b.
template <class Kind, int kM, int kCount, int kWidth>
__device__ void dots(float (&s)[kM][kCount], const Tile<Kind, kWidth>& a, int row0, const Tile<Kind, kWidth>& b) {
  using T = Tile<Kind, kWidth>;
  constexpr int kSize = static_cast<int>(sizeof(Element<Kind>));
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned from_a = a.address(row0 + lane % 16, lane / 16 * T::kChunk);
  const unsigned from_b =
      kF32<Kind> ? b.address(lane % 8, lane / 8 * 4) : b.address(lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8);
#pragma unroll 2
  for (int k = 0; k < kWidth; k += 16) {
    Fragment<Kind> fa[kM];
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < Fragment<Kind>::kCount / 4; ++half) {
        unsigned raw[4];
        load_matrices(raw, from_a + static_cast<unsigned>(16 * m * T::kRowBytes + (k + 8 * half) * kSize));
        fa[m].set(4 * half, raw);
      }
#pragma unroll
    for (int pair = 0; pair < kCount / 8; ++pair) {
      Fragment<Kind> fb;
#pragma unroll
      for (int half = 0; half < Fragment<Kind>::kCount / 4; ++half) {
        unsigned raw[4];
        load_matrices(raw, from_b + static_cast<unsigned>((16 * pair + 8 * half) * T::kRowBytes + k * kSize));
        fb.set(4 * half, raw);
      }
      multiply(s, pair, fa, fb);
    }
  }
}

/// sums[m] += weights[m], in the layout of dots(), times the rows of b. The layout of sums: put_row().
template <class Kind, int kM, int kCount, int kOut, int kWidth>
__device__ void add_rows(float (&sums)[kM][kOut], const float (&weights)[kM][kCount], const Tile<Kind, kWidth>& b) {
  using T = Tile<Kind, kWidth>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int c = 0; c < kCount / 8; ++c) {  // 16 rows of b
    Fragment<Kind> fa[kM];
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float* w = weights[m] + 8 * c + 4 * n;
        if constexpr (kF32<Kind>)
          fa[m].set(4 * n, w[0]), fa[m].set(4 * n + 1, w[2]), fa[m].set(4 * n + 2, w[1]), fa[m].set(4 * n + 3, w[3]);
        else
          fa[m].high[2 * n] = pack_pair<Element<Kind>>(w[0], w[1]),
                         fa[m].high[2 * n + 1] = pack_pair<Element<Kind>>(w[2], w[3]);
      }
#pragma unroll
    for (int pair = 0; pair < kOut / 8; ++pair) {
      Fragment<Kind> fb;
      if constexpr (kF32<Kind>) {
        // A thread's rows 2 q and 2 q + 1 of 8 serve as its rows q and q + 4, its columns 2 g and 2 g + 1 of 16 as
        // column g of two tiles.
        const float* from = b.data + (16 * c + lane % 4 * 2) * T::kStride + 16 * pair + lane / 4 * 2;
#pragma unroll
        for (int k = 0; k < 2; ++k)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const float2 two = *reinterpret_cast<const float2*>(from + (8 * k + i) * T::kStride);
            fb.set(2 * k + i, two.x), fb.set(4 + 2 * k + i, two.y);
          }
      } else {
        unsigned raw[4];
        load_matrices_transposed(raw, b.address(16 * c + lane % 16, 16 * pair + lane / 16 * 8));
        fb.set(0, raw);
      }
      if constexpr (std::is_same_v<Kind, TwoParts>) {
        // Tensor cores truncate sums: over a thousand rows that would reduce them by 1e-5. So they add only 16 rows,
        // and the addition here rounds to nearest.
        float part[kM][8] = {};
        multiply(part, 0, fa, fb);
#pragma unroll
        for (int m = 0; m < kM; ++m)
#pragma unroll
          for (int i = 0; i < 8; ++i) sums[m][8 * pair + i] += part[m][i];
      } else {
        multiply(sums, pair, fa, fb);
      }
    }
  }
}

/// Stores sums of a thread's upper (half 0) or lower row of 16, times `factor`, to the elements from `at` on.
/// `vectors`: x has the kind's type and consists of whole pieces.
template <class Kind, int kOut>
__device__ void put_row(const Heads& x, std::int64_t at, const float (&sums)[kOut], int half, float factor, int width,
                        bool vectors) {
  using E = Element<Kind>;
  constexpr int kTogether = kF32<Kind> ? 4 : 2,
                kSums = 2 * kTogether;  // neighbours, and the sums of both halves that contain them
  const int first = static_cast<int>(threadIdx.x) % 4 * kTogether;
  const auto sum = [&](const float* of, int e) {
    return factor * (kF32<Kind> ? of[e % 2 * 4 + 2 * half + e / 2] : of[2 * half + e]);
  };
  if (vectors && width % kTogether == 0) {
#pragma unroll
    for (int i = 0; i < kOut / kSums; ++i) {
      const int column = i * 4 * kTogether + first;
      if (column >= width) break;
      E* const to = static_cast<E*>(x.data) + at + column;
      const auto v = map<kTogether>([&](int e) { return sum(sums + i * kSums, e); });
      write_aligned(to, pack<E>(x.accumulate ? v + widen(read_aligned<kTogether>(to)) : v));
    }
    return;
  }
  // A loop, in which the sums are in the same registers each time: unrolled by element the body would be long.
  float left[kOut];
#pragma unroll
  for (int i = 0; i < kOut; ++i) left[i] = sums[i];
#pragma unroll 1
  for (int column = first; column < width; column += 4 * kTogether) {
#pragma unroll
    for (int e = 0; e < kTogether; ++e)
      if (column + e < width) x.put(at + column + e, sum(left, e));
#pragma unroll
    for (int i = 0; i + kSums < kOut; ++i) left[i] = left[i + kSums];
  }
}

// ---------------------------------------------------------------- blocks

struct MmaProblem : AttentionProblem {
  static constexpr bool kCodes = false;  // keys and values are codes in pages
  RowStatistics rows;                    // backward only
  bool copies = false, vectors = false;
  int tiles = 0;    // of the rows of a head, owned by blocks
  int section = 0;  // heads that are processed together, so that their shared data stays in L2

  /// The number of keys up to the last that query t sees.
  __device__ int sees(int t) const { return static_cast<int>(seen(t)); }
};

/// Scores under the problem's cap.
template <int kM, int kCount> __device__ void cap_scores(float (&s)[kM][kCount], const MmaProblem& p) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int i = 0; i < kCount; ++i) s[m][i] = p.capped(s[m][i]);
}

/// s[m], in the layout of dots(), times the factors of their columns.
template <int kM, int kCount> __device__ void scale_columns(float (&s)[kM][kCount], const float* factors) {
#pragma unroll
  for (int c = 0; c < kCount / 4; ++c) {
    const float2 f = *reinterpret_cast<const float2*>(factors + 8 * c + static_cast<int>(threadIdx.x) % 4 * 2);
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[m][4 * c + i] *= i % 2 ? f.y : f.x;
  }
}

/// The rows that a block owns. Within a section the first tiles of all heads come first.
struct Place {
  int tile, head, sequence;

  __device__ Place(const MmaProblem& p, int heads) {
    const int block = static_cast<int>(blockIdx.x), all = p.batch * heads, s = block / (p.section * p.tiles),
              r = block - s * p.section * p.tiles;
    const int begin = s * p.section, count = all - begin < p.section ? all - begin : p.section, h = begin + r % count;
    tile = r / count, head = h % heads, sequence = h / heads;
  }
};

/// Steps over the tiles of the other side: bring(step) copies one into stage step % kStages, work(step) uses it.
template <int kStages> __device__ void in_stages(int steps, auto&& bring, auto&& work) {
  if (kStages > 1) bring(0);
  for (int step = 0; step < steps; ++step) {
    if (kStages == 1) {
      __syncthreads();
      bring(step);
    }
    copies_arrived<0>();
    __syncthreads();
    if (kStages > 1 && step + 1 < steps) bring(step + 1);
    work(step);
  }
}

/// Equal in all lanes of a warp.
__device__ inline int first_row(int rows_of_warp) { return warp_index() * rows_of_warp; }
/// A lane's upper row of 16, and the first of its columns of 8.
__device__ inline int lane_row() { return static_cast<int>(threadIdx.x) % 32 / 4; }
__device__ inline int lane_column() { return static_cast<int>(threadIdx.x) % 4 * 2; }

}  // namespace hpcdl::cuda::mma
