#pragma once
// Decoding on tensor cores of sm_80 and later (.cu files). The query heads of one key/value head are the rows of a
// product; keys and values go from global memory to the registers of mma.m16n8k16 without rearrangement. This works
// because element k or n of a product need not be the k-th or n-th in memory, as long as both operands agree:
//   scores: k runs over 32 elements of a head so that each thread's 16 bytes of a row are four of its registers;
//   out:    n-tile j is elements j, 8 + j, 16 + j, ... of 64, so that each thread's 16 bytes of four rows are its part
//   of 8 tiles.

#include "hpcdl/cuda/mma.cuh"
#include "hpcdl/cuda/wgmma.cuh"
#include "hpcdl/ops/attention/problem.cuh"
#include "hpcdl/ops/attention/softmax_rows.cuh"

namespace hpcdl::cuda {

/// One warp's pass over tiles of 16 keys. Rows of the product: query head lane / 4 and, with kTall, 8 more.
/// Rows: at(t, page_of(t)) points to row t of a tile of keys, whose rows are `token` apart.
template <class T, class Rows, int kWidth, bool kTall> struct DecodeWarp {
  static constexpr int kSteps = kWidth / 32, kParts = kWidth / 64;
  Rows keys, values;
  int at, end;     // tokens: where the next tile begins, and where those of this warp end
  int hidden = 0;  // tokens before it are not seen
  float cap = 0;   // of scores before they are scaled; 0: none
  unsigned q[2 * kSteps][4];
  uint4 k[2][kSteps], v[kParts][4];
  float out[kParts][8][4] = {};
  RowSoftmax state;

  __device__ DecodeWarp(const Rows& k_, const Rows& v_, int begin, int end_)
      : keys(k_), values(v_), at(begin), end(end_) {}

  /// Loads rows of q, `apart` elements from each other; only the first `rows` exist.
  __device__ void bring_query(const T* from, std::int64_t apart, int rows) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int u = 0; u < kSteps; ++u)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = lane / 4 + 8 * h;
        const uint4 x = row < rows ? *reinterpret_cast<const uint4*>(from + row * apart + 32 * u + lane % 4 * 8)
                                   : make_uint4(0, 0, 0, 0);
        q[2 * u][h] = x.x, q[2 * u][2 + h] = x.y, q[2 * u + 1][h] = x.z, q[2 * u + 1][2 + h] = x.w;
      }
  }
  /// Relaxed, so that the load stays before await_previous() (cuda/overlap.cuh).
  __device__ static uint4 piece(const T* from, bool there) {
    uint4 r = make_uint4(0, 0, 0, 0);
    if (there)
      asm volatile("ld.relaxed.gpu.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
                   : "l"(from)
                   : "memory");
    return r;
  }
  /// Loads the keys of the tile at token `first`, whose rows begin at `from`.
  __device__ void bring_keys(const T* from, int first) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
      for (int u = 0; u < kSteps; ++u)
        k[t][u] = piece(from + (8 * t + lane / 4) * keys.token + 32 * u + lane % 4 * 8, first + 8 * t + lane / 4 < end);
  }
  __device__ void bring_values(const T* from, int first) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int row = lane % 4 * 2 + r % 2 + r / 2 * 8;
#pragma unroll
      for (int w = 0; w < kParts; ++w)
        v[w][r] = piece(from + row * values.token + 64 * w + lane / 4 * 8, first + row < end);
    }
  }
  /// Where the keys and values of a tile lie.
  struct Tile {
    const T *keys = nullptr, *values = nullptr;
  };
  __device__ Tile find(int first) const {
    if (first >= end) return {};
    const int page = keys.page_of(first);
    return {keys.at(first, page), values.at(first, page)};
  }
  /// Loads the first tile.
  __device__ void bring(const Tile& t) {
    if (at < end) bring_keys(t.keys, at), bring_values(t.values, at);
  }
  /// Processes a tile of which tokens `before` to `left` are seen. p: the scores 2^(scale s - top) as an A operand;
  /// earlier sums are rescaled accordingly.
  __device__ void scores(unsigned (&p)[4], float scale, int before, int left) {
    float s[8] = {};
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      float d[4] = {};
#pragma unroll
      for (int u = 0; u < kSteps; ++u) {
        mma_16x8x16<T>(d, q[2 * u], k[t][u].x, k[t][u].y);
        mma_16x8x16<T>(d, q[2 * u + 1], k[t][u].z, k[t][u].w);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = 8 * t + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
        if (cap > 0) d[i] = cap * branchless_tanh(d[i] / cap);
        s[4 * t + i] = token < left && token >= before ? d[i] : -__builtin_inff();
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
#pragma unroll
    for (int i = 0; i < 4; ++i) p[i] = pack_pair<T>(s[2 * i], s[2 * i + 1]);
  }
  __device__ void add_values(const unsigned (&p)[4]) {
    const auto half = [](unsigned low, unsigned high, bool odd) {
      return __byte_perm(low, high, odd ? 0x7632 : 0x5410);
    };
#pragma unroll
    for (int w = 0; w < kParts; ++w) {
      const unsigned raw[4][4] = {{v[w][0].x, v[w][0].y, v[w][0].z, v[w][0].w},
                                  {v[w][1].x, v[w][1].y, v[w][1].z, v[w][1].w},
                                  {v[w][2].x, v[w][2].y, v[w][2].z, v[w][2].w},
                                  {v[w][3].x, v[w][3].y, v[w][3].z, v[w][3].w}};
#pragma unroll
      for (int j = 0; j < 8; ++j)
        mma_16x8x16<T>(out[w][j], p, half(raw[0][j / 2], raw[1][j / 2], j % 2),
                       half(raw[2][j / 2], raw[3][j / 2], j % 2));
    }
  }
  /// All tiles of this warp, `step` tokens apart; the first has been loaded.
  __device__ void walk(int step, float scale) {
    for (; at < end; at += step) {
      const bool more = at + step < end;
      const Tile next = find(at + step);  // while this tile is processed
      unsigned p[4];
      scores(p, scale, hidden - at, end - at);
      if (more) bring_keys(next.keys, at + step);
      add_values(p);
      if (more) bring_values(next.values, at + step);
    }
  }
  /// rows[r]: `width` sums, then the sum of weights and their top, unscaled.
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
          for (int i = 0; i < 2; ++i) row[64 * w + 8 * (lane % 4 * 2 + i) + j] = out[w][j][2 * h + i];
      const float sum = quad_sum(state.sum[h]);
      if (lane % 4 == 0) row[kWidth] = sum, row[kWidth + 1] = state.top[h];
    }
  }
};

}  // namespace hpcdl::cuda
