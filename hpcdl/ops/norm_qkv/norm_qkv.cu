#include "hpcdl/ops/norm_qkv/norm_qkv.h"

#include "hpcdl/ops/norm_swiglu/int4_pairs.cuh"

namespace hpcdl::cuda {
namespace {

/// Pairs that rope() rotates together: elements i and i + D/2 of a head, of the queries, then of the keys, then of the
/// values.
template <class E> struct HeadPairs {
  static constexpr int kMostHeadDim = 256, kShared = kMostHeadDim + 1;  // the angles; the slot
  int count, half, ends[2];                                             // all pairs; end of those of q, of q and k
  Bias bias[3];
  E* to[3];           // q, then the pools, or rows for the keys and values
  std::int64_t page;  // elements of a page; 0: rows
  const float* table;
  const std::int32_t* position;
  const std::int64_t* slot;
  int positions, slots;  // of the table and of the pools

  __device__ PairPlace place(int u) const {
    const int m = (u >= ends[0]) + (u >= ends[1]), i = u - (m == 0 ? 0 : ends[m - 1]), row = i / half * half + i;
    return {{m, m}, {row, row + half}};
  }
  __device__ void prepare(float* shared) const {
    const std::int64_t at = *position;
    const bool known = at >= 0 && at < positions;
    for (int i = static_cast<int>(threadIdx.x); i < 2 * half; i += static_cast<int>(blockDim.x))
      shared[i] = known ? table[at * 2 * half + i] : __builtin_nanf("");
    if (threadIdx.x != 0) return;
    const std::int64_t here = *slot;
    shared[kMostHeadDim] = __int_as_float(here >= 0 && here < slots ? static_cast<int>(here) : -1);
  }
  __device__ void finish(const float* shared, int u, float a, float b) const {
    const PairPlace p = place(u);
    const int m = p.matrix[0];
    E left = narrow<E>(a + bias[m](p.row[0])), right = narrow<E>(b + bias[m](p.row[1]));
    if (m < 2) {
      const float x1 = widen(left), x2 = widen(right), c = shared[p.row[0] % half], s = shared[half + p.row[0] % half];
      left = narrow<E>(::fmaf(x1, c, 0.0f - x2 * s)), right = narrow<E>(::fmaf(x2, c, x1 * s));
    }
    E* at = to[m] + p.row[0];
    if (m > 0 && page > 0) {
      const int here = __float_as_int(shared[kMostHeadDim]);
      if (here < 0) return;  // the pools have no room for the token
      const int width = 2 * half, head = p.row[0] / width;
      at = to[m] + here / kPageTokens * page + (head * kPageTokens + here % kPageTokens) * width + p.row[0] % width;
    }
    at[0] = left, at[half] = right;
  }
};

}  // namespace

bool norm_qkv(Stream& s, const Tensor& q, const Tensor& keys, const Tensor& values, const View& x, const View& gamma,
              const View& table, const NormQkv::Places<View>& places, const Matrix<View> (&m)[3],
              const NormQkv::Args& a) {
  const bool in_pools = keys.rank() == 4;
  const std::int64_t half = a.head_dim / 2, n = q.cols(), kv = in_pools ? keys[1] * keys[3] : keys.cols();
  if (!one_whole_row(x, gamma) || a.head_dim > HeadPairs<bf16>::kMostHeadDim || keys.dtype() != x.dtype() ||
      values.dtype() != x.dtype() || values.shape() != keys.shape() || n + 2 * kv >= (1 << 30))
    return false;
  const NormedRow in{x.data(), Parameter(gamma), a.eps, static_cast<int>(x.cols()), a.constant_weights};
  bool served = false;
  const auto start = [&]<class E>() {
    const HeadPairs<E> pairs{static_cast<int>(n / 2 + kv),
                             static_cast<int>(half),
                             {static_cast<int>(n / 2), static_cast<int>((n + kv) / 2)},
                             {Bias(m[0].bias), Bias(m[1].bias), Bias(m[2].bias)},
                             {q.ptr<E>(), keys.ptr<E>(), values.ptr<E>()},
                             in_pools ? keys.strides()[0] : 0,
                             table.ptr<float>(),
                             places.positions.ptr<std::int32_t>(),
                             places.slots.ptr<std::int64_t>(),
                             static_cast<int>(table[0]),
                             in_pools ? static_cast<int>(keys[0] * kPageTokens) : 0};
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
