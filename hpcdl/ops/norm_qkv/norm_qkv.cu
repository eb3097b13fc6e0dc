#include "hpcdl/ops/norm_qkv/norm_qkv.h"

#include "hpcdl/ops/norm_swiglu/int4_pairs.cuh"

namespace hpcdl::cuda {
namespace {

/// Pairs that rope() rotates together: elements i and i + D/2 of a head, of the queries, then of the keys, then of the
/// values.
template <class E> struct HeadPairs {
  static constexpr int kMostHeadDim = 256, kShared = kMostHeadDim + 1;  // the angles, the position
  int count, half, ends[2];                                             // all pairs; end of those of q, of q and k
  Bias bias[3];
  E* to[3];               // q, the caches
  std::int64_t apart[3];  // distance between tokens of a cache
  const float* table;
  const StepParams* params;
  int positions, capacity;

  __device__ PairPlace place(int u) const {
    const int m = (u >= ends[0]) + (u >= ends[1]), i = u - (m == 0 ? 0 : ends[m - 1]), row = i / half * half + i;
    return {{m, m}, {row, row + half}};
  }
  __device__ void prepare(float* shared) const {
    const std::int64_t position = params->position;
    const bool known = position >= 0 && position < positions;
    for (int i = static_cast<int>(threadIdx.x); i < 2 * half; i += static_cast<int>(blockDim.x))
      shared[i] = known ? table[position * 2 * half + i] : __builtin_nanf("");
    if (threadIdx.x == 0)  // a token for which the caches have no room is skipped
      shared[kMostHeadDim] = __int_as_float(position >= 0 && position < capacity ? static_cast<int>(position) : -1);
  }
  __device__ void finish(const float* shared, int u, float a, float b) const {
    const PairPlace p = place(u);
    const int m = p.matrix[0], position = __float_as_int(shared[kMostHeadDim]);
    E left = narrow<E>(a + bias[m](p.row[0])), right = narrow<E>(b + bias[m](p.row[1]));
    if (m < 2) {
      const float x1 = widen(left), x2 = widen(right), c = shared[p.row[0] % half], s = shared[half + p.row[0] % half];
      left = narrow<E>(::fmaf(x1, c, 0.0f - x2 * s)), right = narrow<E>(::fmaf(x2, c, x1 * s));
    }
    if (m > 0 && position < 0) return;
    E* const at = to[m] + (m > 0 ? position * apart[m] : 0);
    at[p.row[0]] = left, at[p.row[1]] = right;
  }
};

}  // namespace

bool norm_qkv(Stream& s, const Tensor& q, const Tensor& keys, const Tensor& values, const View& x, const View& gamma,
              const View& table, const Matrix<View> (&m)[3], const NormQkv::Args& a) {
  const std::int64_t half = a.head_dim / 2, n = q.cols(), kv = keys[2];
  if (!one_whole_row(x, gamma) || a.head_dim > HeadPairs<bf16>::kMostHeadDim || keys.dtype() != x.dtype() ||
      values.dtype() != x.dtype() || values[2] != kv || values[1] != keys[1] || n + 2 * kv >= (1 << 30))
    return false;
  const NormedRow in{x.data(), Parameter(gamma), a.eps, static_cast<int>(x.cols()), a.constant_weights};
  bool served = false;
  const auto start = [&]<class E>() {
    const HeadPairs<E> pairs{static_cast<int>(n / 2 + kv),
                             static_cast<int>(half),
                             {static_cast<int>(n / 2), static_cast<int>((n + kv) / 2)},
                             {Bias(m[0].bias), Bias(m[1].bias), Bias(m[2].bias)},
                             {q.ptr<E>(), keys.ptr<E>(), values.ptr<E>()},
                             {0, keys.strides()[1], values.strides()[1]},
                             table.ptr<float>(),
                             s.kernel_params(),
                             static_cast<int>(table[0]),
                             static_cast<int>(keys[1])};
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
