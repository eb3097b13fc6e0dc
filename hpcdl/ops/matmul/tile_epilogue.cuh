#pragma once
// From sums in registers to D: scale, bias, C, z, activation, in f32; then through shared memory, in pieces of 64 rows
// x 128 bytes, to global memory by the copy engine.

#include "hpcdl/cuda/element.cuh"
#include "hpcdl/cuda/tile/channel.cuh"
#include "hpcdl/cuda/tile/leave.cuh"
#include "hpcdl/ops/fuse/activations.h"
#include "hpcdl/ops/matmul/device_gemm.h"

namespace hpcdl::cuda {

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

/// fuse::GeluTanh with the two instructions that are accurate to 2 ulp.
struct FastGelu {
  /// 1 / (1 + 2^-t).
  __device__ static float gate(float x) {
    constexpr float kSteep = fuse::GeluTanh::kTwoC * fuse::GeluTanh::kLog2e;
    float e, r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * ::fmaf(-kSteep * 0.044715f * x, x, -kSteep)));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + e));
    return r;
  }
  __device__ static float value(float x) { return x * gate(x); }
  __device__ static float slope(float x) {
    const float s = gate(x), near = fminf(fmaxf(x, -fuse::kSaturated), fuse::kSaturated);
    const float du2 = fuse::GeluTanh::kTwoC * ::fmaf(3 * 0.044715f * near, near, 1.0f);
    return ::fmaf(s * (1.0f - s) * near, du2, s);
  }
};

/// f of the activation's type; nothing for none.
template <class F> __device__ void with_activation(GemmActivation a, const F& f) {
  if (a == GemmActivation::relu) f(fuse::Relu{});
  else if (a == GemmActivation::gelu_tanh) f(FastGelu{});
  else if (a == GemmActivation::gelu_erf) f(fuse::GeluErf{});
}
template <int kCount> __device__ void activate(float (&v)[kCount], GemmActivation a) {
  with_activation(a, [&]<class A>(A) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] = A::value(v[i]);
  });
}

template <class S> struct TileMemory;
struct TileMaps;

/// How one warpgroup stores its results.
template <class T, class S> struct TileWriter {
  const TileMaps& maps;
  const TileEpilogue& o;
  const TileMemory<S>& memory;
  int group, thread;
  Leaving way;
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

  /// Where piece i of this warpgroup begins in the tile. Pieces are in the order of the registers of the sums.
  __device__ int row_of(int i) const { return ((S::kInTurn ? 0 : group * S::kBlocks) + i / (S::kN / 64)) * 64; }
  __device__ static int column_of(int i) { return i % (S::kN / 64) * 64; }
  /// Called before the products: the pieces of C are loaded to where those of D will be stored.
  __device__ void fetch_c(int m0, int n0, int layer) const {
    if (o.c == TileC::none || thread != 0) return;
    tma_wait_read<0>();
    Barrier* full = memory.c().expect(Slot{group, 0}, S::kPieces * kPieceBytes);
#pragma unroll
    for (int i = 0; i < S::kPieces; ++i)
      tma_load(memory.out(group, i), maps.c, full, n0 + column_of(i), m0 + row_of(i), layer);
  }

  /// kCount neighbouring buffers that the copy engine has finished reading, for a group of that many stores.
  template <int kCount> __device__ unsigned char* next_buffers() {
    way.reuse<S::kBuffers / kCount - 1>();
    unsigned char* p = memory.out(group, buffer);
    buffer = buffer + 2 * kCount > S::kBuffers ? 0 : buffer + kCount;
    return p;
  }
  /// Stores what all threads have put into a piece of D, and z from the one before it.
  __device__ void leave(const unsigned char* piece, int col, int row, int layer) const {
    way.leave([&] {
      if (o.keep_z) tma_store(maps.z, piece - kPieceBytes, col, row, layer);
      if (o.add) tma_add(maps.d, piece, col, row, layer);
      else tma_store(maps.d, piece, col, row, layer);
    });
  }

  /// f(v + 8 j, c): the eight elements of C that belong to v[8 j] and following.
  template <class F> __device__ void each_of_c(const unsigned char* from, float (&v)[32], const F& f) const {
    const unsigned base = shared_address(from);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      unsigned r[4];
      load_matrices(r, base + matrix_at<int>(j));
      float c[8];
#pragma unroll
      for (int i = 0; i < 4; ++i) c[i * 2] = unpack_low<T>(r[i]), c[i * 2 + 1] = unpack_high<T>(r[i]);
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
  template <int kCount> __device__ void begin(float (&v)[kCount], const float* sums, int col) const {
    const float* b = memory.bias(group) + col + thread % 4 * 2;
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] = sums[i] * o.scale;
    if (!o.bias) return;
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
      const float2 x = *reinterpret_cast<const float2*>(b + j * 8);
      v[j * 4] += x.x, v[j * 4 + 1] += x.y, v[j * 4 + 2] += x.x, v[j * 4 + 3] += x.y;
    }
  }

  using Sums = float[S::kBlocks * S::kN / 2];

  /// Writes the tile, and leaves nothing of the sums.
  __device__ void write(Sums& sums, int m0, int n0, int layer) {
    if (o.bias) {
#pragma unroll
      for (int i = 0; i < kBiases; ++i)
        if (thread + i * 128 < S::kN) memory.bias(group)[thread + i * 128] = bias[i];
      way.sync();
    }
    const bool with_c = !o.f32 && o.c != TileC::none;
    if (with_c) {
      memory.c().get(Slot{group, c_parity});
      c_parity ^= 1;
    }
    const auto at = [&](int i) { return Place{m0 + row_of(i), n0, column_of(i), layer}; };
    const auto c_of = [&](int i) { return with_c ? memory.out(group, i) : nullptr; };
    const bool plain = o.activation == GemmActivation::none && !o.keep_z;
    if (o.f32 && plain) {
      in_pieces<S::kPieces>(sums, [&](const float* v, int i) { write32<false>(v, at(i)); });
    } else if (o.f32) {
      in_pieces<1>(sums, [&](const float* v, int i) { write32<true>(v, at(i)); });
    } else if (plain) {
      in_pieces<S::kPieces>(sums, [&](const float* v, int i) { write16<false>(v, c_of(i), at(i)); });
    } else if (o.c != TileC::z_of_slope) {
      in_pieces<S::kPieces>(sums, [&](const float* v, int i) { write16<true>(v, c_of(i), at(i)); });
    } else {
      in_pieces<1>(sums, [&](const float* v, int i) { write_slope(v, c_of(i), at(i)); });
    }
  }

 private:
  /// The first row of a piece, and its first column, as that of the tile and the distance from there.
  struct Place {
    int row, n0, col, layer;
  };

  /// f(its 32 sums, i) for each piece i, with code for kAtOnce of them: the sums of later ones move down to the same
  /// registers. The code of a slope for a whole tile does not fit into the instruction cache, and warps would wait for
  /// it most of the time; shorter code gains more from overlapping pieces.
  template <int kAtOnce, class F> __device__ void in_pieces(Sums& sums, const F& f) const {
    static_assert(S::kPieces % kAtOnce == 0);
#pragma unroll 1
    for (int i = 0; i < S::kPieces; i += kAtOnce) {
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) f(sums + j * 32, i + j);
#pragma unroll
      for (int j = 0; j + kAtOnce * 32 < S::kBlocks * S::kN / 2; ++j) sums[j] = sums[j + kAtOnce * 32];
    }
  }

  template <bool kActivated> __device__ void write32(const float* sums, const Place& at) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int col = at.col + half * 32;
      float v[16];
      begin(v, sums + half * 16, col);
      unsigned char* piece = activated<kActivated>(v, [&](unsigned char* z) { put32(z, v); });
      put32(piece, v);
      leave(piece, at.n0 + col, at.row, at.layer);
    }
  }

  /// `c`: the piece of C, where that of D goes, or null.
  template <bool kActivated> __device__ void write16(const float* sums, unsigned char* c, const Place& at) {
    float v[32];
    begin(v, sums, at.col);
    if (o.c == TileC::before_activation) add16(c, v);
    unsigned char* piece = c;
    if (!c) piece = activated<kActivated>(v, [&](unsigned char* z) { put_piece<T>(z, v); });
    else if constexpr (kActivated) activate(v, o.activation);
    if (o.c == TileC::after_activation) add16(c, v);
    put_piece<T>(piece, v);
    leave(piece, at.n0 + at.col, at.row, at.layer);
  }

  /// D = (A x B) act'(z), z in the piece where that of D goes.
  __device__ void write_slope(const float* sums, unsigned char* piece, const Place& at) const {
    float v[32];
    begin(v, sums, at.col);
    with_activation(o.activation, [&]<class A>(A) {
      each_of_c(piece, v, [](float* to, const float (&z)[8]) {
#pragma unroll
        for (int i = 0; i < 8; ++i) to[i] *= A::slope(z[i]);
      });
    });
    put_piece<T>(piece, v);
    leave(piece, at.n0 + at.col, at.row, at.layer);
  }

  /// The activation of v, after put_z() of v if z is kept. Returns the buffer for D.
  template <bool kActivated, int kCount, class F>
  __device__ unsigned char* activated(float (&v)[kCount], const F& put_z) {
    unsigned char* piece;
    if (kActivated && o.keep_z) {
      piece = next_buffers<2>();
      put_z(piece);
      piece += kPieceBytes;
    } else {
      piece = next_buffers<1>();
    }
    if constexpr (kActivated) activate(v, o.activation);
    return piece;
  }
};

}  // namespace hpcdl::cuda
