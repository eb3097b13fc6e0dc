#include "hpcdl/ops/norm_qkv/norm_qkv.h"

#include "hpcdl/ops/matmul/streamed_weights.cuh"
#include "hpcdl/ops/norm_swiglu/int4_pairs.cuh"

namespace hpcdl::cuda {
namespace {

/// Pairs that rope() rotates together: elements i and i + D/2 of a head, of the queries, then of the keys, then of the
/// values.
template <class E> struct HeadPairs {
  static constexpr int kMostHeadDim = 256, kShared = kMostHeadDim + 1;  // the angles; the slot
  int count, half, ends[2];                                             // all pairs; end of those of q, of q and k
  Bias bias[3];
  E* to[3];              // q, then the pools, or rows for the keys and values
  std::int64_t cols[3];  // of such rows
  std::int64_t page;     // elements of a page; 0: rows
  const float* table;
  const std::int32_t* position;
  const std::int64_t* slot;
  int positions, slots;  // of the table and of the pools
  int box;               // neighbours of a head's half, at most 64

  __device__ PairPlace place(int u) const {
    const int m = (u >= ends[0]) + (u >= ends[1]), i = u - (m == 0 ? 0 : ends[m - 1]), row = i / half * half + i;
    return {{m, m}, {row, row + half}};
  }
  /// Number i of the angles of a row of x: cosines, then sines.
  __device__ float angle(int row, int i) const {
    const std::int64_t at = position[row];
    return at >= 0 && at < positions ? table[at * 2 * half + i] : __builtin_nanf("");
  }
  /// The slot of a row of x, or -1.
  __device__ int place_of(int row) const {
    const std::int64_t here = slot[row];
    return here >= 0 && here < slots ? static_cast<int>(here) : -1;
  }
  __device__ void prepare(float* shared) const {
    for (int i = static_cast<int>(threadIdx.x); i < 2 * half; i += static_cast<int>(blockDim.x))
      shared[i] = angle(0, i);
    if (threadIdx.x == 0) shared[kMostHeadDim] = __int_as_float(place_of(0));
  }
  __device__ void finish(const float* shared, int u, float a, float b) const {
    put(
        0, u, Lanes<1>(a), Lanes<1>(b), [&](int i) { return shared[i]; },
        [&] { return __float_as_int(shared[kMostHeadDim]); });
  }
  template <int N> __device__ void finish(int row, int u, const Lanes<N>& a, const Lanes<N>& b) const {
    put(row, u, a, b, [&](int i) { return angle(row, i); }, [&] { return place_of(row); });
  }

 private:
  /// Rotates N neighbouring pairs of a row of x by their angles and stores them, those of keys and values at its slot.
  template <int N, class Angle, class Slot>
  __device__ void put(int x_row, int u, const Lanes<N>& a, const Lanes<N>& b, Angle&& angle_of, Slot&& slot_of) const {
    const PairPlace p = place(u);
    const int m = p.matrix[0], width = 2 * half, head = p.row[0] / width, in_head = p.row[0] % width;
    E* at = to[m] + x_row * cols[m] + p.row[0];
    if (m > 0 && page > 0) {
      const int here = slot_of();
      if (here < 0) return;  // the pools have no room for the token
      at = to[m] + here / kPageTokens * page + (head * kPageTokens + here % kPageTokens) * width + in_head;
    }
    Lanes<N> left, right;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      left.v[i] = widen(narrow<E>(a.v[i] + bias[m](p.row[0] + i)));
      right.v[i] = widen(narrow<E>(b.v[i] + bias[m](p.row[1] + i)));
      if (m < 2) {
        const float x1 = left.v[i], x2 = right.v[i], c = angle_of(in_head + i), s = angle_of(half + in_head + i);
        left.v[i] = ::fmaf(x1, c, 0.0f - x2 * s), right.v[i] = ::fmaf(x2, c, x1 * s);
      }
    }
    store(at, left), store(at + half, right);
  }
};

}  // namespace

bool norm_qkv(Stream& s, const Tensor& q, const Tensor& keys, const Tensor& values, const View& x, const View& gamma,
              const View& table, const NormQkv::Places<View>& places, const Matrix<View> (&m)[3], const Tensor& h,
              const NormQkv::Args& a) {
  const bool in_pools = keys.rank() == 4;
  const std::int64_t half = a.head_dim / 2, n = q.cols(), kv = in_pools ? keys[1] * keys[3] : keys.cols();
  if (s.numerics().row_invariant || a.head_dim > HeadPairs<bf16>::kMostHeadDim || keys.dtype() != x.dtype() ||
      values.dtype() != x.dtype() || values.shape() != keys.shape() || n + 2 * kv >= (1 << 30))
    return false;
  const View dense[] = {m[0].w, m[1].w, m[2].w};
  const bool one = one_whole_row(x, gamma), quantized = m[0].quantized() || m[1].quantized() || m[2].quantized(),
             rows = x.rows() > 1 && !quantized && half % 32 == 0 && can_stream<128>(s, h, dense);
  if (!one && !rows) return false;
  bool served = false;
  const auto start = [&]<class E>() {
    const HeadPairs<E> pairs{.count = static_cast<int>(n / 2 + kv),
                             .half = static_cast<int>(half),
                             .ends = {static_cast<int>(n / 2), static_cast<int>((n + kv) / 2)},
                             .bias = {Bias(m[0].bias), Bias(m[1].bias), Bias(m[2].bias)},
                             .to = {q.ptr<E>(), keys.ptr<E>(), values.ptr<E>()},
                             .cols = {n, kv, kv},
                             .page = in_pools ? keys.strides()[0] : 0,
                             .table = table.ptr<float>(),
                             .position = places.positions.ptr<std::int32_t>(),
                             .slot = places.slots.ptr<std::int64_t>(),
                             .positions = static_cast<int>(table[0]),
                             .slots = in_pools ? static_cast<int>(keys[0] * kPageTokens) : 0,
                             .box = half % 64 == 0 ? 64 : 32};
    if (rows) {
      RmsNorm::forward(s, h, {}, x, gamma, {a.eps});
      start_streamed<E, 128>(s, h, dense, pairs, a.constant_weights, "norm_qkv");
      served = true;
      return;
    }
    const NormedRow in{x.data(), Parameter(gamma), a.eps, static_cast<int>(x.cols()), a.constant_weights};
    if (m[0].quantized() && m[1].quantized() && m[2].quantized()) {
      served = half % int4::kTileRows == 0 && start_int4_pairs<E>(s, in, m, pairs, "norm_qkv");
    } else if (whole_rows(m[0].w, x.dtype()) && whole_rows(m[1].w, x.dtype()) && whole_rows(m[2].w, x.dtype())) {
      start_pairs<E>(s,
                     PairedRows<E, HeadPairs<E>>{in,
                                                 {m[0].w.ptr<E>(), m[1].w.ptr<E>(), m[2].w.ptr<E>()},
                                                 {m[0].w.row_stride(), m[1].w.row_stride(), m[2].w.row_stride()},
                                                 pairs,
                                                 1},
                     "norm_qkv");
      served = true;
    }
  };
  return with_16_bits(x.dtype(), start) && served;
}

}  // namespace hpcdl::cuda
