#pragma once
// Decoding on tensor cores of sm_80 and later (.cu files). Keys are the rows of a product, the query heads that share
// them its columns:
//   scores (keys, heads) = keys (keys, D) q^T;   out (D, heads) = values^T (D, keys) weights (keys, heads).
// A warp loads tiles of 16 keys ahead, and they are operands as they are: to registers, or several tiles to shared memory
// if they are small, so that enough bytes are in flight, or do not fit into registers. Copies to shared memory reach 0.69
// of the read rate, loads 0.96: H200, 32 texts of 32768 keys, 8 heads of 128, bf16, 1380 us and 963; i8 740 and 909. This
// works because element k or m of a product need not be the k-th or m-th in memory, as long as both operands agree:
//   scores: k runs over 32 elements of a head so that each thread's 16 bytes of a row are four of its registers;
//   out:    each thread has neighbouring elements of four rows of values; two of them are its rows of one product.
// Grids are made for as many blocks as fit on a multiprocessor (decode_shape.h). When they were made for two of heads of
// 128, of which three fit, some multiprocessors got three and others one, and that call took 1131 us.
// 8-bit codes become bf16, or for scores the type of the query, in registers: 16 bytes of a row are 16 elements, and k
// runs over 64 of them.

#include "hpcdl/cuda/async_copy.cuh"
#include "hpcdl/cuda/mma.cuh"
#include "hpcdl/ops/attention/codes.cuh"
#include "hpcdl/ops/attention/problem.cuh"
#include "hpcdl/ops/attention/softmax_rows.cuh"

namespace hpcdl::cuda {

template <bool kThere> struct TileScales {};
template <> struct TileScales<true> {
  float key_scales[16], value_scales[16];
};

/// How a warp holds 16 keys and values of a head of up to kWidth elements. Each thread reads what it loaded itself.
template <class K, int kWidth> struct TileShape16 {
  static constexpr int kPiece = kLanes<K>;                      // elements of 16 bytes
  static constexpr int kSteps = kWidth / (4 * kPiece);          // pieces of a thread in a row of keys
  static constexpr int kValues = std::min(kPiece, kWidth / 8);  // neighbouring elements of a thread in a row of values
  static constexpr int kParts = kWidth / (8 * kValues);         // such groups in a row
  using Values = std::conditional_t<kValues * sizeof(K) == 16, uint4, uint2>;
};
/// Rows of keys are lane / 4 and 8 more; those of values 2 (lane % 4), the next, and 8 more.
template <class K, int kWidth> struct RegisterTile {
  using S = TileShape16<K, kWidth>;
  uint4 keys[2][S::kSteps];
  uint4 values[S::kParts][4];

  __device__ uint4 key(int row, int step) const { return keys[row][step]; }
  __device__ uint4 value(int part, int row) const { return values[part][row]; }
};
/// In shared memory.
template <class K, int kWidth> struct DecodeTile : TileScales<kHasScales<K>> {
  using S = TileShape16<K, kWidth>;
  uint4 keys[2][S::kSteps][kWarp];
  typename S::Values values[S::kParts][4][kWarp];

  __device__ uint4 key(int row, int step) const { return keys[row][step][threadIdx.x % kWarp]; }
  __device__ typename S::Values value(int part, int row) const { return values[part][row][threadIdx.x % kWarp]; }
};

/// The online softmax of scores whose queries are the columns of a product: of a thread's columns 2 (lane % 4) and the
/// next, 8 threads have the other rows.
struct ColumnSoftmax {
  OnlineSoftmax column[2];

  /// s -> 2^(scale (s - top)); returns in `shrink` the factors by which earlier sums must shrink.
  __device__ void update(float (&s)[4], float scale, float (&shrink)[2]) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float x[2] = {s[e], s[2 + e]};
      shrink[e] = column[e].update(x, column_max(fmaxf(x[0], x[1])), scale);
      s[e] = x[0], s[2 + e] = x[1];
    }
  }
  __device__ static float column_max(float x) {
#pragma unroll
    for (int apart = 4; apart < kWarp; apart *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, apart));
    return x;
  }
  __device__ static float column_sum(float x) {
#pragma unroll
    for (int apart = 4; apart < kWarp; apart *= 2) x += __shfl_xor_sync(~0u, x, apart);
    return x;
  }
};

/// One warp's pass over tiles of 16 keys, elements of type T or codes of type K, and heads of up to kWidth elements, for
/// kQueries query heads, 8 or 16. Rows: at(t, page_of(t)) points to row t of a tile of keys, whose rows are `token`
/// apart, and scales(t, page_of(t)) to their scales.
template <class T, class K, class Rows, int kWidth, int kQueries> struct DecodeWarp {
  static constexpr bool kCodes = !std::is_same_v<T, K>;
  static_assert(kCodes == kHasScales<K>);
  using Weight = std::conditional_t<kCodes, bf16, T>;  // of the range of scales
  using Tile = TileShape16<K, kWidth>;
  static constexpr int kEights = kQueries / 8, kPairs = kWidth / 16;
  Rows keys, values;
  int at, end;     // tokens: where the next tile begins, and where those of this warp end
  int width;       // of a head, whole pieces of 16 bytes
  int hidden = 0;  // tokens before it are not seen
  float cap = 0;   // of scores before they are scaled; 0: none
  uint2 q[kWidth / 16][kEights];
  float out[kPairs][kEights][4] = {};
  ColumnSoftmax state[kEights];

  __device__ DecodeWarp(const Rows& k_, const Rows& v_, int begin, int end_, int width_)
      : keys(k_), values(v_), at(begin), end(end_), width(width_) {}

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
  /// Whether elements from this one on exist.
  __device__ bool inside(int column) const { return column < width; }

  /// Loads rows of q, `apart` elements from each other; only the first `rows` exist.
  __device__ void bring_query(const T* from, std::int64_t apart, int rows) {
#pragma unroll
    for (int u = 0; u < kWidth / 32; ++u)
#pragma unroll
      for (int n = 0; n < kEights; ++n) {
        constexpr int kPiece = Tile::kPiece, kPart = kPiece / 8;
        const int row = lane() / 4 + 8 * n, column = u / kPart * 4 * kPiece + lane() % 4 * kPiece + u % kPart * 8;
        const uint4 x = row < rows && inside(column) ? *reinterpret_cast<const uint4*>(from + row * apart + column)
                                                     : make_uint4(0, 0, 0, 0);
        q[2 * u][n] = make_uint2(x.x, x.y), q[2 * u + 1][n] = make_uint2(x.z, x.w);
      }
  }

  /// The page of the tile at token `first`, if there is one.
  __device__ int page_of(int first) const { return first < end ? keys.page_of(first) : 0; }
  /// f(row, step, from, there) for this thread's pieces of keys of the tile at token `first`, which lies in `page`.
  template <class F> __device__ void for_keys(int first, int page, F&& f) const {
    const K* const from = keys.at(first, page);
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
      for (int u = 0; u < Tile::kSteps; ++u) {
        const int row = 8 * t + lane() / 4, column = (4 * u + lane() % 4) * Tile::kPiece;
        f(t, u, from + row * keys.token + column, first + row < end && inside(column));
      }
  }
  /// f(part, row, from, there) for those of values.
  template <class F> __device__ void for_values(int first, int page, F&& f) const {
    const K* const from = values.at(first, page);
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int w = 0; w < Tile::kParts; ++w) {
        const int row = lane() % 4 * 2 + r % 2 + r / 2 * 8, column = (8 * w + lane() / 4) * Tile::kValues;
        f(w, r, from + row * values.token + column, first + row < end && inside(column));
      }
  }
  /// Begins to copy a tile, as one group of copies. Rows from `end` on become zero; their scales may be anything.
  __device__ void bring(DecodeTile<K, kWidth>& to, int first, int page) const {
    if (first < end) {
      for_keys(first, page,
               [&](int t, int u, const K* from, bool there) { copy_piece(&to.keys[t][u][lane()], from, there); });
      for_values(first, page,
                 [&](int w, int r, const K* from, bool there) { copy_piece(&to.values[w][r][lane()], from, there); });
      if constexpr (kCodes) {
        const int piece = lane() % 4 * 4;
        if (lane() < 4) copy_16(to.key_scales + piece, keys.scales(first, page) + piece, true);
        else if (lane() < 8) copy_16(to.value_scales + piece, values.scales(first, page) + piece, true);
      }
    }
    copies_issued();
  }
  /// The load is relaxed, so that it stays before await_previous() (cuda/overlap.cuh).
  __device__ static uint4 piece(const K* from, bool there) {
    uint4 r = make_uint4(0, 0, 0, 0);
    if (there)
      asm volatile("ld.relaxed.gpu.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
                   : "l"(from)
                   : "memory");
    return r;
  }
  __device__ void bring_keys(RegisterTile<K, kWidth>& to, int first, int page) const {
    for_keys(first, page, [&](int t, int u, const K* from, bool there) { to.keys[t][u] = piece(from, there); });
  }
  __device__ void bring_values(RegisterTile<K, kWidth>& to, int first, int page) const {
    for_values(first, page, [&](int w, int r, const K* from, bool there) { to.values[w][r] = piece(from, there); });
  }

  /// Processes a tile of which tokens `before` to `left` are seen. p: the weights 2^(scale s - top), times the scales of
  /// values, as B operands; earlier sums are rescaled accordingly.
  template <class Held>
  __device__ void weigh(uint2 (&p)[kEights], const Held& tile, float scale, int before, int left) {
    float s[kEights][4] = {};
#pragma unroll
    for (int u = 0; u < Tile::kSteps; ++u) multiply_keys(s, u, tile.key(0, u), tile.key(1, u));
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = lane() / 4 + i / 2 * 8;
        if constexpr (kCodes) s[n][i] *= tile.key_scales[key];
        if (cap > 0) s[n][i] = cap * branchless_tanh(s[n][i] / cap);
        if (key >= left || key < before) s[n][i] = -__builtin_inff();
      }
      float shrink[2];
      state[n].update(s[n], scale, shrink);
#pragma unroll
      for (int m = 0; m < kPairs; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) out[m][n][i] *= shrink[i % 2];
      if constexpr (kCodes) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = lane() / 4 + i / 2 * 8;
          s[n][i] = key < left ? s[n][i] * tile.value_scales[key] : 0.0f;
        }
      }
      p[n] = make_uint2(transpose_8x8(pack_pair<Weight>(s[n][0], s[n][1])),
                        transpose_8x8(pack_pair<Weight>(s[n][2], s[n][3])));
    }
  }
  /// s += the products of two rows' pieces u of keys with the queries.
  __device__ void multiply_keys(float (&s)[kEights][4], int u, const uint4& upper, const uint4& lower) const {
    const unsigned x[] = {upper.x, upper.y, upper.z, upper.w}, y[] = {lower.x, lower.y, lower.z, lower.w};
    const auto multiply = [&](const unsigned (&a)[4], int k) {
#pragma unroll
      for (int n = 0; n < kEights; ++n) mma_16x8x16<T>(s[n], a, q[k][n].x, q[k][n].y);
    };
    if constexpr (kCodes) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint2 g = pairs_of_codes<T, K>(x[i]), h = pairs_of_codes<T, K>(y[i]);
        multiply({g.x, h.x, g.y, h.y}, 4 * u + i);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) multiply({x[2 * i], y[2 * i], x[2 * i + 1], y[2 * i + 1]}, 2 * u + i);
    }
  }
  /// out += the products of values with the weights.
  template <class Held> __device__ void add_values(const Held& tile, const uint2 (&p)[kEights]) {
    constexpr int kWords = sizeof(typename Tile::Values) / 4, kPairsOfWord = kCodes ? 2 : 1;
#pragma unroll
    for (int w = 0; w < Tile::kParts; ++w) {
      unsigned rows[4][kWords];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const auto piece = tile.value(w, r);
        memcpy(rows[r], &piece, sizeof piece);
      }
#pragma unroll
      for (int i = 0; i < kWords; ++i)
#pragma unroll
        for (int half = 0; half < kPairsOfWord; ++half) {
          const auto pairs = [&](unsigned first, unsigned second) {  // of an element of both rows, and of the next
            if constexpr (kCodes) return pairs_of_codes<Weight, K>(__byte_perm(first, second, half ? 0x7362 : 0x5140));
            else return make_uint2(__byte_perm(first, second, 0x5410), __byte_perm(first, second, 0x7632));
          };
          const uint2 near = pairs(rows[0][i], rows[1][i]), far = pairs(rows[2][i], rows[3][i]);
#pragma unroll
          for (int n = 0; n < kEights; ++n)
            mma_16x8x16<Weight>(out[(w * kWords + i) * kPairsOfWord + half][n], {near.x, near.y, far.x, far.y}, p[n].x,
                                p[n].y);
        }
    }
  }

  /// All tiles of this warp, `step` tokens apart; the first kStages of them have been brought.
  template <int kStages> __device__ void walk(DecodeTile<K, kWidth> (&ring)[kStages], int step, float scale) {
    for (int slot = 0; at < end; at += step, slot = slot + 1 < kStages ? slot + 1 : 0) {
      const int later = at + kStages * step, page = page_of(later);  // read while this tile is processed
      copies_arrived<kStages - 1>();
      __syncwarp();
      uint2 p[kEights];
      weigh(p, ring[slot], scale, hidden - at, end - at);
      add_values(ring[slot], p);
      __syncwarp();
      bring(ring[slot], later, page);
    }
  }
  /// The same in registers, with keys and values of one tile, which have been brought.
  __device__ void walk(RegisterTile<K, kWidth>& tile, int step, float scale) {
    for (; at < end; at += step) {
      const int later = at + step, page = page_of(later);  // read while this tile is processed
      uint2 p[kEights];
      weigh(p, tile, scale, hidden - at, end - at);
      if (later < end) bring_keys(tile, later, page);
      add_values(tile, p);
      if (later < end) bring_values(tile, later, page);
    }
  }
  /// rows[r]: `kWidth` sums, then the sum of weights and their top, unscaled.
  __device__ void put(float (*rows)[kWidth + 2]) const {
    constexpr int kValues = Tile::kValues;
#pragma unroll
    for (int n = 0; n < kEights; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float* const row = rows[8 * n + lane() % 4 * 2 + e];
#pragma unroll
        for (int i = 0; i < 2 * kPairs; ++i)
          row[(i / kValues * 8 + lane() / 4) * kValues + i % kValues] = out[i / 2][n][i % 2 * 2 + e];
        const float sum = ColumnSoftmax::column_sum(state[n].column[e].sum);
        if (lane() < 4) row[kWidth] = sum, row[kWidth + 1] = state[n].column[e].top;
      }
  }
};

}  // namespace hpcdl::cuda
