#pragma once
// Decoding on tensor cores of sm_80 and later (.cu files). The query heads of one key/value head are the rows of a
// product; keys and values go from global memory to the registers of mma.m16n8k16 without rearrangement. This works
// because element k or n of a product need not be the k-th or n-th in memory, as long as both operands agree:
//   scores: k runs over 32 elements of a head so that each thread's 16 bytes of a row are four of its registers;
//   out:    n-tile j is elements j, 8 + j, 16 + j, ... of 64, so that each thread's 16 bytes of four rows are its part
//   of 8 tiles.
// 8-bit codes become bf16, or for scores the type of the query, in registers: 16 bytes of a row are 16 elements, k runs
// over 64 of them, and each thread has an eighth of a row of values, element j of which is its part of n-tile j.

#include "hpcdl/cuda/mma.cuh"
#include "hpcdl/cuda/wgmma.cuh"
#include "hpcdl/ops/attention/codes.cuh"
#include "hpcdl/ops/attention/problem.cuh"
#include "hpcdl/ops/attention/softmax_rows.cuh"

namespace hpcdl::cuda {

/// One warp's pass over tiles of 16 keys, elements of type T or codes of type K, and heads of up to kWidth elements.
/// Rows of the product: query head lane / 4 and, with kTall, 8 more. Rows: at(t, page_of(t)) points to row t of a tile
/// of keys, whose rows are `token` apart, and scales(t, page_of(t)) to their scales.
template <class T, class K, class Rows, int kWidth, bool kTall> struct DecodeWarp {
  static constexpr bool kCodes = !std::is_same_v<T, K>;
  static_assert(kCodes == kHasScales<K>);
  using Weight = std::conditional_t<kCodes, bf16, T>;  // of the range of scales
  static constexpr int kPiece = kLanes<K>;             // elements of 16 bytes
  static constexpr int kSteps = kWidth / (4 * kPiece), kParts = kWidth / 64;
  static constexpr int kValues = kCodes ? kWidth / 8 : 8;  // neighbouring elements of a thread
  Rows keys, values;
  int at, end;     // tokens: where the next tile begins, and where those of this warp end
  int width;       // of a head; only for codes may it be less than kWidth
  int hidden = 0;  // tokens before it are not seen
  float cap = 0;   // of scores before they are scaled; 0: none
  unsigned q[kWidth / 16][4];
  uint4 k[2][kSteps], v[kCodes ? 1 : kParts][4];
  float2 key_scale[2], value_scale[2];  // of a thread's tokens
  float out[kParts][8][4] = {};
  RowSoftmax state;

  __device__ DecodeWarp(const Rows& k_, const Rows& v_, int begin, int end_, int width_)
      : keys(k_), values(v_), at(begin), end(end_), width(width_) {}

  /// Whether elements from this one on exist.
  __device__ bool inside(int column) const { return !kCodes || column < width; }

  /// Loads rows of q, `apart` elements from each other; only the first `rows` exist.
  __device__ void bring_query(const T* from, std::int64_t apart, int rows) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int u = 0; u < kWidth / 32; ++u)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        constexpr int kHalves = kPiece / 8;
        const int row = lane / 4 + 8 * h, column = u / kHalves * 4 * kPiece + lane % 4 * kPiece + u % kHalves * 8;
        const uint4 x = row < rows && inside(column) ? *reinterpret_cast<const uint4*>(from + row * apart + column)
                                                     : make_uint4(0, 0, 0, 0);
        q[2 * u][h] = x.x, q[2 * u][2 + h] = x.y, q[2 * u + 1][h] = x.z, q[2 * u + 1][2 + h] = x.w;
      }
  }
  // Loads are relaxed, so that they stay before await_previous() (cuda/overlap.cuh).
  __device__ static uint4 piece(const K* from, bool there) {
    uint4 r = make_uint4(0, 0, 0, 0);
    if (there)
      asm volatile("ld.relaxed.gpu.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
                   : "l"(from)
                   : "memory");
    return r;
  }
  __device__ static uint4 half_piece(const K* from, bool there) {
    uint4 r = make_uint4(0, 0, 0, 0);
    if (there)
      asm volatile("ld.relaxed.gpu.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                   : "=r"(r.x), "=r"(r.y)
                   : "l"(from)
                   : "memory");
    return r;
  }
  /// The scales of a thread's tokens; those from `end` on may be anything.
  __device__ void bring_scales(float2 (&to)[2], const float* from, int first) const {
    const int token = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int t = 0; t < 2; ++t)
      if (to[t] = make_float2(0, 0); first + 8 * t + token < end)
        asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];"
                     : "=f"(to[t].x), "=f"(to[t].y)
                     : "l"(from + 8 * t + token)
                     : "memory");
  }
  /// Where the keys and values of a tile lie, and their scales.
  struct Tile {
    const K *keys = nullptr, *values = nullptr;
    const float *key_scales = nullptr, *value_scales = nullptr;
  };
  __device__ Tile find(int first) const {
    if (first >= end) return {};
    const int page = keys.page_of(first);
    Tile t{keys.at(first, page), values.at(first, page)};
    if constexpr (kCodes) t.key_scales = keys.scales(first, page), t.value_scales = values.scales(first, page);
    return t;
  }
  /// Loads the keys of the tile at token `first`.
  __device__ void bring_keys(const Tile& from, int first) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
      for (int u = 0; u < kSteps; ++u) {
        const int column = 4 * kPiece * u + lane % 4 * kPiece;
        k[t][u] = piece(from.keys + (8 * t + lane / 4) * keys.token + column,
                        first + 8 * t + lane / 4 < end && inside(column));
      }
    if constexpr (kCodes) bring_scales(key_scale, from.key_scales, first);
  }
  __device__ void bring_values(const Tile& from, int first) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int row = lane % 4 * 2 + r % 2 + r / 2 * 8;
      const K* const begin = from.values + row * values.token + lane / 4 * kValues;
      const bool there = first + row < end;
      if constexpr (kCodes) {
        const bool needed = there && inside(lane / 4 * kValues);
        v[0][r] = kWidth == 64 ? half_piece(begin, needed) : piece(begin, needed);
      } else {
#pragma unroll
        for (int w = 0; w < kParts; ++w) v[w][r] = piece(begin + 64 * w, there);
      }
    }
    if constexpr (kCodes) bring_scales(value_scale, from.value_scales, first);
  }
  /// Loads the first tile.
  __device__ void bring(const Tile& t) {
    if (at < end) bring_keys(t, at), bring_values(t, at);
  }
  /// d += the products of the queries with a piece of 8 keys.
  __device__ void multiply_keys(float (&d)[4], int u, const uint4& x) const {
    if constexpr (kCodes) {
      const unsigned words[] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint2 b = pairs_of_codes<T, K>(words[i]);
        mma_16x8x16<T>(d, q[4 * u + i], b.x, b.y);
      }
    } else {
      mma_16x8x16<T>(d, q[2 * u], x.x, x.y);
      mma_16x8x16<T>(d, q[2 * u + 1], x.z, x.w);
    }
  }
  /// Processes a tile of which tokens `before` to `left` are seen. p: the scores 2^(scale s - top), times the scales of
  /// values, as an A operand; earlier sums are rescaled accordingly.
  __device__ void scores(unsigned (&p)[4], float scale, int before, int left) {
    float s[8] = {};
    const auto token = [](int t, int i) { return 8 * t + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2; };
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      float d[4] = {};
#pragma unroll
      for (int u = 0; u < kSteps; ++u) multiply_keys(d, u, k[t][u]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (kCodes) d[i] *= i % 2 ? key_scale[t].y : key_scale[t].x;
        if (cap > 0) d[i] = cap * branchless_tanh(d[i] / cap);
        s[4 * t + i] = token(t, i) < left && token(t, i) >= before ? d[i] : -__builtin_inff();
      }
    }
    float shrink[2];
    state.update(s, scale, shrink);
#pragma unroll
    for (int w = 0; w < kParts; ++w)
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int i = 0; i < (kTall ? 4 : 2); ++i) out[w][j][i] *= shrink[i / 2];
    if constexpr (kCodes) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        s[i] = token(i / 4, i) < left ? s[i] * (i % 2 ? value_scale[i / 4].y : value_scale[i / 4].x) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) p[i] = pack_pair<Weight>(s[2 * i], s[2 * i + 1]);
  }
  /// Out of words of a thread's four rows: element j of all of them for n-tile j.
  __device__ void multiply_codes(const unsigned (&p)[4], int first, const unsigned (&x)[4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const unsigned order = half ? 0x7362 : 0x5140;  // two codes of both rows
      const uint2 upper = pairs_of_codes<Weight, K>(__byte_perm(x[0], x[1], order)),
                  lower = pairs_of_codes<Weight, K>(__byte_perm(x[2], x[3], order));
      const int j = first + 2 * half;
      mma_16x8x16<Weight>(out[j / 8][j % 8], p, upper.x, lower.x);
      mma_16x8x16<Weight>(out[j / 8][j % 8 + 1], p, upper.y, lower.y);
    }
  }
  __device__ void add_values(const unsigned (&p)[4]) {
    const auto half = [](unsigned low, unsigned high, bool odd) {
      return __byte_perm(low, high, odd ? 0x7632 : 0x5410);
    };
#pragma unroll
    for (int w = 0; w < (kCodes ? 1 : kParts); ++w) {
      const unsigned raw[4][4] = {{v[w][0].x, v[w][0].y, v[w][0].z, v[w][0].w},
                                  {v[w][1].x, v[w][1].y, v[w][1].z, v[w][1].w},
                                  {v[w][2].x, v[w][2].y, v[w][2].z, v[w][2].w},
                                  {v[w][3].x, v[w][3].y, v[w][3].z, v[w][3].w}};
      if constexpr (kCodes) {
#pragma unroll
        for (int i = 0; i < kWidth / 32; ++i) multiply_codes(p, 4 * i, {raw[0][i], raw[1][i], raw[2][i], raw[3][i]});
      } else {
#pragma unroll
        for (int j = 0; j < 8; ++j)
          mma_16x8x16<T>(out[w][j], p, half(raw[0][j / 2], raw[1][j / 2], j % 2),
                         half(raw[2][j / 2], raw[3][j / 2], j % 2));
      }
    }
  }
  /// All tiles of this warp, `step` tokens apart; the first has been loaded.
  __device__ void walk(int step, float scale) {
    for (; at < end; at += step) {
      const bool more = at + step < end;
      const Tile next = find(at + step);  // while this tile is processed
      unsigned p[4];
      scores(p, scale, hidden - at, end - at);
      if (more) bring_keys(next, at + step);
      add_values(p);
      if (more) bring_values(next, at + step);
    }
  }
  /// rows[r]: `kWidth` sums, then the sum of weights and their top, unscaled.
  __device__ void put(float (*rows)[kWidth + 2]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int h = 0; h < (kTall ? 2 : 1); ++h) {
      float* row = rows[lane / 4 + 8 * h];
#pragma unroll
      for (int w = 0; w < kParts; ++w)
#pragma unroll
        for (int j = 0; j < 8; ++j)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int n = lane % 4 * 2 + i, column = kCodes ? n * kValues + 8 * w + j : 64 * w + 8 * n + j;
            row[column] = out[w][j][2 * h + i];
          }
      const float sum = quad_sum(state.sum[h]);
      if (lane % 4 == 0) row[kWidth] = sum, row[kWidth + 1] = state.top[h];
    }
  }
};

}  // namespace hpcdl::cuda
