#include "hpcdl/ops/norm_swiglu/norm_swiglu.h"

#include "hpcdl/ops/fuse/activations.h"
#include "hpcdl/ops/norm_swiglu/int4_pairs.cuh"

namespace hpcdl::cuda {
namespace {

/// Row u of the gate and of up.
template <class E> struct GatedPairs {
  static constexpr int kShared = 1;
  int count;
  Bias gate, up;
  E* y;

  __device__ PairPlace place(int u) const { return {{0, 1}, {u, u}}; }
  __device__ void prepare(float*) const {}
  __device__ void finish(const float*, int u, float a, float b) const {
    const Lanes<1> g(widen(narrow<E>(a + gate(u)))), v(widen(narrow<E>(b + up(u))));
    y[u] = narrow<E>((fuse::Silu::value(g) * v).v[0]);
  }
};

}  // namespace

bool norm_swiglu(Stream& s, const Tensor& y, const View& x, const View& gamma, const Matrix<View>& gate,
                 const Matrix<View>& up, const NormSwiglu::Args& a) {
  if (!one_whole_row(x, gamma) || y.size() == 0) return false;
  const NormedRow in{x.data(), Parameter(gamma), a.eps, static_cast<int>(x.cols()), a.constant_weights};
  bool served = false;
  const auto start = [&]<class E>() {
    const GatedPairs<E> pairs{static_cast<int>(y.cols()), Bias(gate.bias), Bias(up.bias), y.ptr<E>()};
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
