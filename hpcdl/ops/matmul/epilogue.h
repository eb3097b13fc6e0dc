#pragma once
// Epilogues: operations on a finished sum before it is stored. Each is a small struct with
//   template <class V, class At> V operator()(V acc, const At& at) const
// where V is a vector of floats on a CPU (one float on a GPU) and `at` knows the element's position and accesses
// memory:
//   at.cols(p)       p[col ...]                 at.elem(p, ld)       p[row * ld + col ...]
//   at.row(p)        p[row] in every lane       at.put(p, ld, v)     p[row * ld + col ...] = v
//   at.erf(v)                                   elementary function of the backend
// They are composed at compile time: Into<float, Chain<Bias<float>, GeluTanh>> is one kernel.

#include <cstdint>

#include "hpcdl/core/device_macros.h"
#include "hpcdl/dtype.h"
#include "hpcdl/ops/fuse/activations.h"

namespace hpcdl::epilogue {

struct Identity {
  template <class V, class At> HPCDL_HOST_DEVICE V operator()(V acc, const At&) const { return acc; }
};

/// acc + bias[col]; does nothing without a bias.
template <class T> struct Bias {
  const T* bias = nullptr;
  template <class V, class At> HPCDL_HOST_DEVICE V operator()(V acc, const At& at) const {
    return bias ? acc + at.cols(bias) : acc;
  }
};

/// acc + C; does nothing without C. C may be D itself.
template <class T> struct Residual {
  const T* c = nullptr;
  std::int64_t ld = 0;
  template <class V, class At> HPCDL_HOST_DEVICE V operator()(V acc, const At& at) const {
    return c ? acc + at.elem(c, ld) : acc;
  }
};

struct Scale {
  float factor = 1;
  template <class V, class At> HPCDL_HOST_DEVICE V operator()(V acc, const At&) const { return acc * V(factor); }
};

/// Converts integer sums: acc * row_scale[row] * col_scale[col].
struct Dequant {
  const float* row_scale = nullptr;
  const float* col_scale = nullptr;
  template <class V, class At> HPCDL_HOST_DEVICE V operator()(V acc, const At& at) const {
    return acc * at.row(row_scale) * at.cols(col_scale);
  }
};

/// Stores the intermediate value for a backward pass; does nothing if it has no destination.
template <class T> struct Save {
  T* to = nullptr;
  std::int64_t ld = 0;
  template <class V, class At> HPCDL_HOST_DEVICE V operator()(V acc, const At& at) const {
    if (to) at.put(to, ld, acc);
    return acc;
  }
};

struct Relu {
  template <class V, class At> HPCDL_HOST_DEVICE V operator()(V x, const At&) const {
    return max(V(0.0f), x);  // this order preserves NaN
  }
};

/// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): Hendrycks & Gimpel, "Gaussian error linear units", 2016.
struct GeluTanh {
  template <class V, class At> HPCDL_HOST_DEVICE V operator()(V x, const At&) const { return fuse::GeluTanh::value(x); }
};

/// x Phi(x), Phi by the error function.
struct GeluErf {
  template <class V, class At> HPCDL_HOST_DEVICE V operator()(V x, const At& at) const {
    const V half = x * V(0.5f);
    return fma(half, at.erf(x * V(0.70710678118654752f)), half);
  }
};

/// F, then G...
template <class... F> struct Chain;
template <class F> struct Chain<F> {
  F first;
  template <class V, class At> HPCDL_HOST_DEVICE V operator()(V acc, const At& at) const { return first(acc, at); }
};
template <class F, class... G> struct Chain<F, G...> {
  F first;
  Chain<G...> rest;
  Chain() = default;
  HPCDL_HOST_DEVICE Chain(F f, G... g) : first(f), rest{g...} {}
  template <class V, class At> HPCDL_HOST_DEVICE V operator()(V acc, const At& at) const {
    return rest(first(acc, at), at);
  }
};

/// The end of every chain: D = f(acc), or D += f(acc).
template <class T, class F = Identity> struct Into {
  using Out = T;
  using Function = F;
  T* d = nullptr;
  std::int64_t ld = 0;
  bool accumulate = false;
  bool cold = false;  // D is large and not read soon: if sums are stored unchanged, non-temporal stores are used
  F f{};
};

/// act(acc + bias) + residual, for a linear layer; stores the pre-activation on request.
template <class T, class TBias, class Activation>
using IntoLinear = Into<T, Chain<Bias<TBias>, Save<T>, Activation, Residual<T>>>;

}  // namespace hpcdl::epilogue
