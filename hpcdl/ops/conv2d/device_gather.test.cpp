// The products of a convolution as the GPU's kernel computes them, run on a host thread by thread: the same functions
// define what each thread copies, its position in shared memory, which elements a lane loads and where its sums go.
// Matrix loads and products follow the PTX manual (ldmatrix, mma.m16n8k16). Inputs are small integers, so that all sums
// are exact and must be equal.

#include "hpcdl/ops/conv2d/device_gather.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "hpcdl/ops/conv2d/device_tiles.h"
#include "hpcdl/rng.h"

namespace hpcdl::cuda {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> integers(std::int64_t n, std::uint64_t seed) {
  std::vector<float> v(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i)
    v[static_cast<std::size_t>(i)] =
        static_cast<float>(static_cast<int>(Rng{seed, 0}.below(static_cast<std::uint64_t>(i), 7)) - 3);
  return v;
}

Conv2dShape shape_of(std::int64_t n, std::int64_t h, std::int64_t w, std::int64_t i, std::int64_t o, std::int64_t kh,
                     std::int64_t kw, Conv2d::Args a) {
  return Conv2d::shape({{n, h, w, i}, DType::f32}, {{o, kh, kw, i}, DType::f32}, a);
}

const Conv2dShape kShapes[] = {
    shape_of(1, 1, 1, 1, 1, 1, 1, {}),
    shape_of(2, 9, 8, 16, 24, 3, 3, {.pad = 1}),
    shape_of(3, 7, 7, 3, 40, 7, 7, {.stride = 2, .pad = 3}),
    shape_of(2, 11, 10, 8, 72, 3, 3, {.stride = 2, .pad = 1}),
    shape_of(2, 12, 9, 24, 8, 1, 1, {.stride = 2}),
    shape_of(1, 13, 12, 8, 136, 3, 2, {.stride = 3, .pad = 2, .dilation = 2}),
    shape_of(2, 9, 11, 5, 7, 3, 4, {.stride = 2, .pad = 4, .dilation = 2}),
    shape_of(1, 8, 8, 40, 16, 5, 5, {.stride = 4, .pad = 2, .dilation = 2}),
    shape_of(5, 6, 6, 136, 8, 3, 3, {.pad = 1, .dilation = 3 - 2}),
    shape_of(2, 5, 5, 8, 8, 2, 2, {.pad = 3}),
    shape_of(0, 5, 5, 8, 8, 3, 3, {.pad = 1}),
};

struct Naive {
  std::vector<float> x, w, dy, y, dx, dw;

  explicit Naive(const Conv2dShape& c)
      : x(integers(c.n * c.h * c.w * c.i, 1)),
        w(integers(c.o * c.k(), 2)),
        dy(integers(c.pixels() * c.o, 3)),
        y(dy.size()),
        dx(x.size()),
        dw(w.size()) {
    for (std::int64_t n = 0; n < c.n; ++n)
      for (std::int64_t p = 0; p < c.oh; ++p)
        for (std::int64_t q = 0; q < c.ow; ++q)
          for (std::int64_t o = 0; o < c.o; ++o)
            for (std::int64_t r = 0; r < c.kh; ++r)
              for (std::int64_t s = 0; s < c.kw; ++s) {
                const auto row = p * c.stride - c.pad + r * c.dilation, col = q * c.stride - c.pad + s * c.dilation;
                if (row < 0 || row >= c.h || col < 0 || col >= c.w) continue;
                for (std::int64_t i = 0; i < c.i; ++i) {
                  const auto ix = static_cast<std::size_t>(((n * c.h + row) * c.w + col) * c.i + i),
                             iw = static_cast<std::size_t>(((o * c.kh + r) * c.kw + s) * c.i + i),
                             iy = static_cast<std::size_t>(((n * c.oh + p) * c.ow + q) * c.o + o);
                  y[iy] += x[ix] * w[iw], dx[ix] += dy[iy] * w[iw], dw[iw] += dy[iy] * x[ix];
                }
              }
  }
};

/// What copies read of an operand; elements of a tile that no thread fills stay NaN.
template <class E> struct FromHost {
  const std::vector<float>& data;
  float at(std::int64_t i) const { return data.at(static_cast<std::size_t>(i)); }
  void chunk(E* to, std::int64_t from) const {
    for (int e = 0; e < kConvChunk<E>; ++e) to[e] = E(from < 0 ? 0.0f : at(from + e));
  }
  void elements(E* to, const std::int64_t (&from)[kConvChunk<E>]) const {
    for (int e = 0; e < kConvChunk<E>; ++e) to[e] = E(from[e] < 0 ? 0.0f : at(from[e]));
  }
};

/// ldmatrix.x4 by a warp: lane l supplies the address `of(l)` and receives two elements of each of four matrices.
template <bool kTransposed, class E, class F> void load_matrices(float (&r)[32][4][2], F&& of) {
  for (int lane = 0; lane < 32; ++lane)
    for (int q = 0; q < 4; ++q)
      for (int e = 0; e < 2; ++e) {
        const int line = kTransposed ? lane % 4 * 2 + e : lane / 4, in = kTransposed ? lane / 4 : lane % 4 * 2 + e;
        const E* from = of(q * 8 + line);
        r[lane][q][e] = static_cast<float>(from[in]);
      }
}

/// mma.m16n8k16 by a warp: c += a b.
void multiply(float (&c)[32][4], const float (&a)[32][4][2], const float (&b)[32][4][2], int first_b) {
  float ma[16][16], mb[16][8];
  for (int lane = 0; lane < 32; ++lane)
    for (int e = 0; e < 2; ++e) {
      const int g = lane / 4, t = lane % 4 * 2 + e;
      ma[g][t] = a[lane][0][e], ma[g + 8][t] = a[lane][1][e], ma[g][t + 8] = a[lane][2][e],
      ma[g + 8][t + 8] = a[lane][3][e];
      mb[t][g] = b[lane][first_b][e], mb[t + 8][g] = b[lane][first_b + 1][e];
    }
  for (int lane = 0; lane < 32; ++lane)
    for (int e = 0; e < 4; ++e)
      for (int k = 0; k < 16; ++k) c[lane][e] += ma[lane / 4 + e / 2 * 8][k] * mb[k][lane % 4 * 2 + e % 2];
}

/// Sums of a block of 16-bit products.
template <class E, int kM, int kN, int kWarpsM, int kWarpsN, bool kA, bool kB> struct Sums {
  using Grid = MmaGrid<kM, kN, kWarpsM, kWarpsN>;
  std::vector<float> acc = std::vector<float>(kConvThreads * Grid::kTilesM * Grid::kTilesN * 4);

  float (&of(int warp, int i, int j))[32][4] {
    return *reinterpret_cast<float (*)[32][4]>(acc.data() + ((warp * Grid::kTilesM + i) * Grid::kTilesN + j) * 128);
  }
  void add(const E* a, const E* b) {
    using TileA = ConvTile<E, kM, kA>;
    using TileB = ConvTile<E, kN, kB>;
    for (int warp = 0; warp < 8; ++warp)
      for (int kk = 0; kk < TileA::kDepth; kk += 16)
        for (int i = 0; i < Grid::kTilesM; ++i) {
          float fa[32][4][2], fb[32][4][2];
          load_matrices<!kA, E>(fa, [&](int lane) {
            const auto p = Grid::template a<kA>(warp, lane, i);
            return a + TileA::at(p.row, kk + p.depth);
          });
          for (int j = 0; j < Grid::kTilesN; ++j) {
            load_matrices<!kB, E>(fb, [&](int lane) {
              const auto p = Grid::template b<kB>(warp, lane, j / 2);
              return b + TileB::at(p.row, kk + p.depth);
            });
            multiply(of(warp, i, j), fa, fb, j % 2 * 2);
          }
        }
  }
  template <class F> void each(F&& f) {
    for (int warp = 0; warp < 8; ++warp)
      for (int i = 0; i < Grid::kTilesM; ++i)
        for (int j = 0; j < Grid::kTilesN; ++j)
          for (int lane = 0; lane < 32; ++lane)
            for (int e = 0; e < 4; ++e)
              f(Grid::row(warp, lane, i, e / 2), Grid::col(warp, lane, j) + e % 2, of(warp, i, j)[lane][e]);
  }
};

/// Sums of a block of f32 products, by mma.m16n8k8.
template <int kM, int kN, int kWarpsM, int kWarpsN, bool kA, bool kB>
struct Sums<float, kM, kN, kWarpsM, kWarpsN, kA, kB> {
  using Grid = MmaGrid<kM, kN, kWarpsM, kWarpsN>;
  std::vector<float> acc = std::vector<float>(kConvThreads * Grid::kTilesM * Grid::kTilesN * 4);

  float& of(int warp, int i, int j, int lane, int e) {
    return acc[static_cast<std::size_t>((((warp * Grid::kTilesM + i) * Grid::kTilesN + j) * 32 + lane) * 4 + e)];
  }
  void add(const float* a, const float* b) {
    for (int warp = 0; warp < 8; ++warp)
      for (int kk = 0; kk < kConvDepth<float>; kk += 8)
        for (int i = 0; i < Grid::kTilesM; ++i)
          for (int j = 0; j < Grid::kTilesN; ++j) product(a, b, warp, kk, i, j);
  }
  void product(const float* a, const float* b, int warp, int kk, int i, int j) {
    float ma[16][8], mb[8][8];
    for (int lane = 0; lane < 32; ++lane) {
      for (int q = 0; q < 4; ++q) {
        const auto p = Grid::a_f32(warp, lane, i, q);
        ma[lane / 4 + q % 2 * 8][lane % 4 + q / 2 * 4] = a[ConvTile<float, kM, kA>::at(p.row, kk + p.depth)];
      }
      for (int q = 0; q < 2; ++q) {
        const auto p = Grid::b_f32(warp, lane, j, q);
        mb[lane % 4 + q * 4][lane / 4] = b[ConvTile<float, kN, kB>::at(p.row, kk + p.depth)];
      }
    }
    for (int lane = 0; lane < 32; ++lane)
      for (int e = 0; e < 4; ++e)
        for (int k = 0; k < 8; ++k)
          of(warp, i, j, lane, e) += ma[lane / 4 + e / 2 * 8][k] * mb[k][lane % 4 * 2 + e % 2];
  }
  template <class F> void each(F&& f) {
    for (int warp = 0; warp < 8; ++warp)
      for (int i = 0; i < Grid::kTilesM; ++i)
        for (int j = 0; j < Grid::kTilesN; ++j)
          for (int lane = 0; lane < 32; ++lane)
            for (int e = 0; e < 4; ++e)
              f(Grid::row(warp, lane, i, e / 2), Grid::col(warp, lane, j) + e % 2, of(warp, i, j, lane, e));
  }
};

/// The whole launch: every block adds its results to d; `written` counts the writes to each element, one share at a
/// time.
template <class E, int kM, int kN, int kWarpsM, int kWarpsN, bool kWhole, class A, class B>
void launch(const A& a, const B& b, const std::vector<float>& a_data, const std::vector<float>& b_data,
            const Scatter& rows, int depth, ConvShares shares, std::vector<float>& d, std::vector<int>& written) {
  using TileA = ConvTile<E, kM, A::kAlongK>;
  using TileB = ConvTile<E, kN, B::kAlongK>;
  constexpr int kDepth = kConvDepth<E>;
  for (int m0 = 0; m0 < rows.rows; m0 += kM)
    for (int n0 = 0; n0 < rows.columns; n0 += kN)
      for (int share = 0; share < shares.count; ++share) {
        Sums<E, kM, kN, kWarpsM, kWarpsN, A::kAlongK, B::kAlongK> sums;
        const int first = share * shares.depth, end = std::min(depth, first + shares.depth);
        for (int k0 = first; k0 < end; k0 += kDepth) {
          std::vector<E> ta(TileA::kElements, E(kNan)), tb(TileB::kElements, E(kNan));
          for (int thread = 0; thread < kConvThreads; ++thread) {
            ConvBrings<E, A, kM, kWhole>(a, m0, thread).issue(k0, ta.data(), FromHost<E>{a_data});
            ConvBrings<E, B, kN, kWhole>(b, n0, thread).issue(k0, tb.data(), FromHost<E>{b_data});
          }
          sums.add(ta.data(), tb.data());
        }
        sums.each([&](int row, int col, float v) {
          const std::int64_t at = rows.at(m0 + row);
          if (at < 0 || n0 + col >= rows.columns) return;
          d.at(static_cast<std::size_t>(at + n0 + col)) += v, ++written.at(static_cast<std::size_t>(at + n0 + col));
        });
      }
}

void expect_equal(const std::vector<float>& got, const std::vector<float>& want, const std::vector<int>& written,
                  int times, const char* what) {
  int wrong = 0;
  for (std::size_t i = 0; i < want.size() && wrong < 3; ++i) {
    if (got[i] == want[i] && written[i] == times) continue;
    ADD_FAILURE() << what << "[" << i << "] is " << got[i] << " instead of " << want[i] << ", written " << written[i]
                  << " times instead of " << times;
    ++wrong;
  }
}

class ConvOnHost : public ::testing::TestWithParam<int> {
 protected:
  const Conv2dShape& c = kShapes[GetParam()];
  Naive naive{c};
  bool whole() const { return c.i % 8 == 0 && c.o % 8 == 0; }
  int o = narrow_int(c.o), k = narrow_int(c.k()), pixels = narrow_int(c.pixels());

  template <class E, int kN, int kWarpsM, int kWarpsN, bool kWhole> void forward() {
    std::vector<float> y(naive.y.size());
    std::vector<int> written(y.size());
    launch<E, 128, kN, kWarpsM, kWarpsN, kWhole>(PixelRows{gather_of_x(c)}, FilterRows{.rows = o, .depths = k}, naive.x,
                                                 naive.w, dense_rows(pixels, o), k, {1, k}, y, written);
    expect_equal(y, naive.y, written, 1, "y");
  }
  template <class E, int kN, int kWarpsM, int kWarpsN, bool kWhole> void data() {
    std::vector<float> dx(naive.dx.size());
    std::vector<int> written(dx.size());
    for (std::int64_t row = 0; row < c.stride; ++row)
      for (std::int64_t col = 0; col < c.stride; ++col) {
        const DataClass d = data_class(c, row, col);
        launch<E, 128, kN, kWarpsM, kWarpsN, kWhole>(PixelRows{d.dy}, d.w, naive.dy, naive.w, d.dx, d.w.depths,
                                                     {1, d.w.depths}, dx, written);
      }
    expect_equal(dx, naive.dx, written, 1, "dx");
  }
  template <class E, int kM, bool kWhole> void weight(int most_shares) {
    std::vector<float> dw(naive.dw.size());
    std::vector<int> written(dw.size());
    const int steps = (pixels + kConvDepth<E> - 1) / kConvDepth<E>;
    const ConvShares shares =
        conv_shares((o + kM - 1) / kM * ((k + 127) / 128), steps, kConvDepth<E>, 264, most_shares);
    launch<E, kM, 128, 2, 4, kWhole>(PixelDepths{.rows = o, .depths = pixels}, TermRows{gather_of_x(c)}, naive.dy,
                                     naive.x, dense_rows(o, k), pixels, shares, dw, written);
    expect_equal(dw, naive.dw, written, shares.count, "dw");
  }
};

TEST_P(ConvOnHost, Forward) {
  forward<bf16, 64, 4, 2, false>();
  forward<float, 64, 4, 2, false>();
  if (!whole()) return;
  forward<bf16, 64, 4, 2, true>();
  forward<bf16, 128, 2, 4, true>();
  forward<float, 64, 4, 2, true>();
  forward<float, 128, 2, 4, true>();
}

TEST_P(ConvOnHost, Data) {
  data<bf16, 64, 4, 2, false>();
  data<float, 64, 4, 2, false>();
  if (!whole()) return;
  data<bf16, 64, 4, 2, true>();
  data<bf16, 128, 2, 4, true>();
  data<float, 64, 4, 2, true>();
  data<float, 128, 2, 4, true>();
}

TEST_P(ConvOnHost, Weight) {
  weight<bf16, 64, false>(64);
  weight<float, 64, false>(64);
  if (!whole()) return;
  weight<bf16, 64, true>(1);
  weight<bf16, 128, true>(64);
  weight<float, 64, true>(64);
  weight<float, 128, true>(64);
}

INSTANTIATE_TEST_SUITE_P(Shapes, ConvOnHost, ::testing::Range(0, static_cast<int>(std::size(kShapes))));

TEST(ConvParts, DivisorsDivide) {
  for (int d = 1; d < 3000; d += d < 300 ? 1 : 97) {
    const Divisor by(d);
    for (int n = 0; n < 20000; ++n) ASSERT_EQ(by(n), n / d) << n << " / " << d;
  }
  for (const int d : {1, 2, 3, 7, 49, 112 * 112, 224 * 224, 65535, 65536, 65537, 4608, (1 << 29) - 1, (1 << 30) + 1,
                      std::numeric_limits<int>::max()}) {
    const Divisor by(d);
    for (std::int64_t q = 0; q * d <= std::numeric_limits<int>::max();
         q += 1 + std::numeric_limits<int>::max() / d / 1000)
      for (std::int64_t n = q * d - 1; n <= q * d + 1; ++n)
        if (n >= 0 && n <= std::numeric_limits<int>::max()) {
          ASSERT_EQ(by(static_cast<int>(n)), n / d) << n << " / " << d;
        }
  }
}

// The shares cover the whole depth, no step twice; none is empty, and there are at most as many as requested.
TEST(ConvParts, SharesCoverTheDepth) {
  for (const int tiles : {1, 2, 9, 36, 144, 700})
    for (int steps = 0; steps < 400; steps += steps < 40 ? 1 : 17)
      for (const int most : {1, 2, 7, 64}) {
        const ConvShares s = conv_shares(tiles, steps, 32, 264, most);
        ASSERT_LE(s.count, most);
        ASSERT_EQ(s.depth % 32, 0);
        ASSERT_GE(s.count * s.depth, steps * 32);
        ASSERT_TRUE(steps == 0 || (s.count - 1) * s.depth < steps * 32) << "an empty share of " << steps;
      }
  EXPECT_GT(conv_shares(1, 4096, 32, 264, 64).count, 32) << "one tile of a deep sum must be divided into shares";
  EXPECT_EQ(conv_shares(264, 100, 32, 264, 64).count, 1) << "full waves need no shares";
}

// Every element of a tile is filled by exactly one thread, in both layouts.
template <class E, int kRows, bool kAlongK> void filled_once() {
  using Tile = ConvTile<E, kRows, kAlongK>;
  std::vector<int> count(Tile::kElements);
  for (int thread = 0; thread < kConvThreads; ++thread)
    for (int c = 0; c < Tile::kChunks; ++c) {
      const auto p = Tile::place(thread, c), p0 = Tile::place(thread, 0);
      EXPECT_TRUE(kAlongK ? p.depth == p0.depth : p.row == p0.row);
      for (int e = 0; e < Tile::kChunk; ++e) ++count.at(static_cast<std::size_t>(Tile::at(p.row, p.depth) + e));
    }
  for (int row = 0; row < kRows; ++row)
    for (int depth = 0; depth < Tile::kDepth; ++depth)
      EXPECT_EQ(count.at(static_cast<std::size_t>(Tile::at(row, depth))), 1) << row << ", " << depth;
}
TEST(ConvParts, TilesAreFilledOnce) {
  filled_once<bf16, 64, true>(), filled_once<bf16, 128, true>(), filled_once<bf16, 64, false>(),
      filled_once<bf16, 128, false>();
  filled_once<float, 64, true>(), filled_once<float, 128, true>(), filled_once<float, 64, false>(),
      filled_once<float, 128, false>();
}

}  // namespace
}  // namespace hpcdl::cuda
