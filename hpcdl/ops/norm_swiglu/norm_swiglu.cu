#include "hpcdl/ops/norm_swiglu/norm_swiglu.h"

#include "hpcdl/ops/fuse/activations.h"
#include "hpcdl/ops/matmul/streamed_weights.cuh"
#include "hpcdl/ops/norm_swiglu/int4_pairs.cuh"
#include "hpcdl/ops/rms_norm/rms_norm.h"

namespace hpcdl::cuda {
namespace {

/// Row u of the gate and of up.
template <class E> struct GatedPairs {
  static constexpr int kShared = 1, box = 64;
  int count;
  Bias gate, up;
  E* y;

  __device__ PairPlace place(int u) const { return {{0, 1}, {u, u}}; }
  __device__ void prepare(float*) const {}
  __device__ void finish(const float*, int u, float a, float b) const { finish(0, u, Lanes<1>(a), Lanes<1>(b)); }
  template <int N> __device__ void finish(int row, int u, const Lanes<N>& a, const Lanes<N>& b) const {
    const auto rounded = [&](const Lanes<N>& sums, const Bias& bias) {
      return map<N>([&](int i) { return u + i < count ? widen(narrow<E>(sums.v[i] + bias(u + i))) : 0.0f; });
    };
    store(y + std::int64_t{row} * count + u, fuse::Silu::value(rounded(a, gate)) * rounded(b, up), count - u);
  }
};

}  // namespace

bool norm_swiglu(Stream& s, const Tensor& y, const View& x, const View& gamma, const Matrix<View>& gate,
                 const Matrix<View>& up, const Tensor& h, const NormSwiglu::Args& a) {
  if (y.size() == 0 || s.numerics().row_invariant) return false;
  const View dense[] = {gate.w, up.w};
  // Beyond, cuBLASLt's two products are faster: 96 rows, 2 x 14336 x 4096, bf16, 74.5 us and 72.1 (H200).
  constexpr int kMostRows = 64;
  const bool rows = x.rows() > 1 && !gate.quantized() && can_stream<kMostRows>(s, h, dense);
  if (!rows && !one_whole_row(x, gamma)) return false;
  bool served = false;
  const auto start = [&]<class E>() {
    const GatedPairs<E> pairs{static_cast<int>(y.cols()), Bias(gate.bias), Bias(up.bias), y.ptr<E>()};
    if (rows) {
      RmsNorm::forward(s, h, {}, x, gamma, {a.eps});
      start_streamed<E, kMostRows>(s, h, dense, pairs, a.constant_weights, "norm_swiglu");
      served = true;
      return;
    }
    const NormedRow in{x.data(), Parameter(gamma), a.eps, static_cast<int>(x.cols()), a.constant_weights};
    if (gate.quantized()) {
      const Matrix<View> both[] = {gate, up};
      served = start_int4_pairs<E>(s, in, both, pairs, "norm_swiglu");
    } else if (whole_rows(gate.w, x.dtype()) && whole_rows(up.w, x.dtype())) {
      start_pairs<E>(s,
                     PairedRows<E, GatedPairs<E>>{
                         in, {gate.w.ptr<E>(), up.w.ptr<E>()}, {gate.w.row_stride(), up.w.row_stride()}, pairs, 1},
                     "norm_swiglu");
      served = true;
    }
  };
  return with_16_bits(x.dtype(), start) && served;
}

}  // namespace hpcdl::cuda
