#pragma once
// From sums in registers to D: scale, bias, C, z, activation, in f32; then through shared memory, in pieces of 64 rows
// x 128 bytes, to global memory by the copy engine.

#include "hpcdl/cuda/element.cuh"
#include "hpcdl/cuda/tma.cuh"
#include "hpcdl/cuda/warpgroup.cuh"
#include "hpcdl/ops/fuse/activations.h"
#include "hpcdl/ops/matmul/device_gemm.h"

namespace hpcdl::cuda {

inline constexpr int kPieceBytes = 64 * 128;

/// The role of an operand C of D's type: it is added, or it is the argument z of the activation whose derivative the
/// sums are multiplied by.
enum class TileC : unsigned char { none, before_activation, after_activation, z_of_slope };

struct TileEpilogue {
  float scale = 1;
  const void* bias = nullptr;
  DType bias_dtype = DType::f32;
  GemmActivation activation = GemmActivation::none;
  TileC c = TileC::none;
  bool keep_z = false;
  bool f32 = false;  // D and z are f32, else of the operands' type
  bool add = false;  // D += (f32 only)
};

template <class T> __device__ unsigned pack_pair(float x, float y);
template <> __device__ inline unsigned pack_pair<bf16>(float x, float y) {
  unsigned r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x));
  return r;
}
template <> __device__ inline unsigned pack_pair<f16>(float x, float y) {
  unsigned r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x));
  return r;
}
template <class T> __device__ void unpack_pair(unsigned u, float& x, float& y);
template <> __device__ inline void unpack_pair<bf16>(unsigned u, float& x, float& y) {
  x = __uint_as_float(u << 16), y = __uint_as_float(u & 0xffff0000u);
}
template <> __device__ inline void unpack_pair<f16>(unsigned u, float& x, float& y) {
  asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h;\n}" : "=f"(x), "=f"(y) : "r"(u));
}

/// 1 / (1 + 2^-t) as in fuse::GeluTanh::gate, with the two instructions that are accurate to 2 ulp.
__device__ inline float fast_gate(float x) {
  constexpr float kSteep = fuse::GeluTanh::kTwoC * fuse::GeluTanh::kLog2e;
  float e, r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * ::fmaf(-kSteep * 0.044715f * x, x, -kSteep)));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + e));
  return r;
}
__device__ inline float fast_gelu_slope(float x) {
  const float s = fast_gate(x), near = fminf(fmaxf(x, -fuse::kSaturated), fuse::kSaturated);
  const float du2 = fuse::GeluTanh::kTwoC * ::fmaf(3 * 0.044715f * near, near, 1.0f);
  return ::fmaf(s * (1.0f - s) * near, du2, s);
}

template <int kCount> __device__ void activate(float (&v)[kCount], GemmActivation a) {
  if (a == GemmActivation::relu) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] = fuse::Relu::value(v[i]);
  } else if (a == GemmActivation::gelu_tanh) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] *= fast_gate(v[i]);
  } else if (a == GemmActivation::gelu_erf) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] = fuse::GeluErf::value(v[i]);
  }
}

/// v *= the derivative at z.
template <int kCount> __device__ void times_slope(float* v, const float (&z)[kCount], GemmActivation a) {
  if (a == GemmActivation::relu) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] *= fuse::Relu::slope(z[i]);
  } else if (a == GemmActivation::gelu_tanh) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] *= fast_gelu_slope(z[i]);
  } else if (a == GemmActivation::gelu_erf) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] *= fuse::GeluErf::slope(z[i]);
  }
}

template <class S> struct TileMemory;
struct TileMaps;

/// How one warpgroup stores its results. v[4 j + 2 h + i] of a piece is row + 8 h, column 8 j + lane % 4 * 2 + i
/// (wgmma.h).
template <class T, class S> struct TileWriter {
  const TileMaps& maps;
  const TileEpilogue& o;
  const TileMemory<S>& memory;
  int group, thread;
  int buffer = 0;
  unsigned c_parity = 0;
  static constexpr int kBiases = (S::kN + 127) / 128;
  float bias[kBiases] = {};

  /// Called before the products; memory.bias() receives it after them.
  __device__ void fetch_bias(int n0, int n) {
    if (!o.bias) return;
#pragma unroll
    for (int i = 0; i < kBiases; ++i) {
      const int col = thread + i * 128;
      bias[i] = col < S::kN && n0 + col < n ? fetch(o.bias, o.bias_dtype, n0 + col) : 0.0f;
    }
  }

  __device__ int first_block() const { return S::kInTurn ? 0 : group * S::kBlocks; }
  /// Called before the products: the pieces of C are loaded to where those of D will be stored.
  __device__ void fetch_c(int m0, int n0, int layer) const {
    if (o.c == TileC::none || thread != 0) return;
    tma_wait_read<0>();
    Barrier* full = memory.c_full() + group;
    barrier_expect(full, S::kPieces * kPieceBytes);
#pragma unroll
    for (int i = 0; i < S::kPieces; ++i)
      tma_load(memory.out(group, i), maps.c, full, n0 + i / S::kBlocks * 64, m0 + (first_block() + i % S::kBlocks) * 64,
               layer);
  }

  __device__ void sync() const { named_sync(1 + group, 128); }

  /// A buffer that the copy engine has finished reading.
  __device__ unsigned char* next_buffer() {
    if (thread == 0) tma_wait_read<S::kPieces - 1>();
    sync();
    unsigned char* p = memory.out(group, buffer);
    buffer = (buffer + 1) % S::kPieces;
    return p;
  }
  __device__ void leave(const unsigned char* piece, bool z, int col, int row, int layer) const {
    fence_async_proxy();
    sync();
    if (thread != 0) return;
    if (z) tma_store(maps.z, piece, col, row, layer);
    else if (o.add) tma_add(maps.d, piece, col, row, layer);
    else tma_store(maps.d, piece, col, row, layer);
    tma_commit();
  }

  /// The byte of a 16-bit piece where this lane's row of four 8 x 8 matrices begins: from column 16 j on.
  __device__ unsigned matrix_at(int j) const {
    const int lane = thread % 32, row = thread / 32 * 16 + lane % 16;
    return static_cast<unsigned>(row * 128 + ((j * 2 + lane / 16) ^ (row % 8)) * 16);
  }
  __device__ void put16(const unsigned char* to, const float (&v)[32]) const {
    const unsigned base = shared_address(to);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float* x = v + j * 8;
      store_matrices(base + matrix_at(j), pack_pair<T>(x[0], x[1]), pack_pair<T>(x[2], x[3]), pack_pair<T>(x[4], x[5]),
                     pack_pair<T>(x[6], x[7]));
    }
  }
  /// f(v + 8 j, c): the eight elements of C that belong to v[8 j] and following.
  template <class F> __device__ void each_of_c(const unsigned char* from, float (&v)[32], const F& f) const {
    const unsigned base = shared_address(from);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      unsigned r[4];
      load_matrices(r, base + matrix_at(j));
      float c[8];
#pragma unroll
      for (int i = 0; i < 4; ++i) unpack_pair<T>(r[i], c[i * 2], c[i * 2 + 1]);
      f(v + j * 8, c);
    }
  }
  __device__ void add16(const unsigned char* from, float (&v)[32]) const {
    each_of_c(from, v, [](float* to, const float (&c)[8]) {
#pragma unroll
      for (int i = 0; i < 8; ++i) to[i] += c[i];
    });
  }
  __device__ void put32(unsigned char* to, const float (&v)[16]) const {
    const int lane = thread % 32, row = thread / 32 * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        *reinterpret_cast<float2*>(to +
                                   swizzled128(static_cast<unsigned>((row + h * 8) * 128 + j * 32 + lane % 4 * 8))) =
            make_float2(v[j * 4 + h * 2], v[j * 4 + h * 2 + 1]);
  }

  /// Applies scale and bias to kCount / 4 times 8 columns.
  template <int kCount> __device__ void begin(float (&v)[kCount], const float* acc, int col) const {
    const float* b = memory.bias(group) + col + thread % 4 * 2;
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] = acc[i] * o.scale;
    if (!o.bias) return;
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
      const float2 x = *reinterpret_cast<const float2*>(b + j * 8);
      v[j * 4] += x.x, v[j * 4 + 1] += x.y, v[j * 4 + 2] += x.x, v[j * 4 + 3] += x.y;
    }
  }

  __device__ void write(const float (&acc)[S::kBlocks][S::kN / 2], int m0, int n0, int layer) {
    if (o.bias) {
#pragma unroll
      for (int i = 0; i < kBiases; ++i)
        if (thread + i * 128 < S::kN) memory.bias(group)[thread + i * 128] = bias[i];
    }
    if (o.f32) write32(acc, m0, n0, layer);
    else write16(acc, m0, n0, layer);
  }

  __device__ void write32(const float (&acc)[S::kBlocks][S::kN / 2], int m0, int n0, int layer) {
#pragma unroll
    for (int c = 0; c < S::kN; c += 32)
#pragma unroll
      for (int i = 0; i < S::kBlocks; ++i) {
        unsigned char* piece = next_buffer();
        float v[16];
        const int row = m0 + (first_block() + i) * 64;
        begin(v, acc[i] + c / 2, c);
        if (o.keep_z) {
          put32(piece, v);
          leave(piece, true, n0 + c, row, layer);
          piece = next_buffer();
        }
        activate(v, o.activation);
        put32(piece, v);
        leave(piece, false, n0 + c, row, layer);
      }
  }

  __device__ void write16(const float (&acc)[S::kBlocks][S::kN / 2], int m0, int n0, int layer) {
    const bool with_c = o.c != TileC::none;
    if (with_c) {
      barrier_wait(memory.c_full() + group, c_parity);
      c_parity ^= 1;
      if (o.bias) sync();
    }
#pragma unroll
    for (int c = 0; c < S::kN / 64; ++c)
#pragma unroll
      for (int i = 0; i < S::kBlocks; ++i) {
        unsigned char* piece = with_c ? memory.out(group, c * S::kBlocks + i) : next_buffer();
        const int row = m0 + (first_block() + i) * 64;
        float v[32];
        begin(v, acc[i] + c * 32, c * 64);
        if (o.c == TileC::before_activation) add16(piece, v);
        if (o.keep_z) {
          put16(piece, v);
          leave(piece, true, n0 + c * 64, row, layer);
          piece = next_buffer();
        }
        if (o.c == TileC::z_of_slope) {
          each_of_c(piece, v, [&](float* to, const float (&z)[8]) { times_slope(to, z, o.activation); });
        } else {
          activate(v, o.activation);
        }
        if (o.c == TileC::after_activation) add16(piece, v);
        put16(piece, v);
        leave(piece, false, n0 + c * 64, row, layer);
      }
  }
};

}  // namespace hpcdl::cuda
