#pragma once
// The device's value type: N floats that one thread holds, loaded and stored as one access of up to 16 bytes. Functors that
// the CPU runs on simd::Vec run on this (ops/fuse/): same operators, same function names.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "hpcdl/core/dtype.h"

namespace hpcdl::cuda {

/// Elements of T in one 16-byte access.
template <class T> inline constexpr int kLanes = 16 / static_cast<int>(sizeof(T));

template <int K> struct Mask {
  bool v[K];
};

template <int K> struct Lanes {
  static constexpr int N = K;
  float v[K];

  Lanes() = default;
  __device__ explicit Lanes(float x) {
#pragma unroll
    for (int i = 0; i < K; ++i) v[i] = x;
  }
};

template <int K, class F> __device__ Lanes<K> map(F&& f) {
  Lanes<K> r;
#pragma unroll
  for (int i = 0; i < K; ++i) r.v[i] = f(i);
  return r;
}

template <int K> __device__ Lanes<K> operator+(const Lanes<K>& a, const Lanes<K>& b) {
  return map<K>([&](int i) { return a.v[i] + b.v[i]; });
}
template <int K> __device__ Lanes<K> operator-(const Lanes<K>& a, const Lanes<K>& b) {
  return map<K>([&](int i) { return a.v[i] - b.v[i]; });
}
template <int K> __device__ Lanes<K> operator*(const Lanes<K>& a, const Lanes<K>& b) {
  return map<K>([&](int i) { return a.v[i] * b.v[i]; });
}
template <int K> __device__ Lanes<K> operator/(const Lanes<K>& a, const Lanes<K>& b) {
  return map<K>([&](int i) { return a.v[i] / b.v[i]; });
}
template <int K> __device__ Mask<K> operator>(const Lanes<K>& a, const Lanes<K>& b) {
  Mask<K> m;
#pragma unroll
  for (int i = 0; i < K; ++i) m.v[i] = a.v[i] > b.v[i];
  return m;
}
template <int K> __device__ Lanes<K> select(const Mask<K>& m, const Lanes<K>& yes, const Lanes<K>& no) {
  return map<K>([&](int i) { return m.v[i] ? yes.v[i] : no.v[i]; });
}
template <int K> __device__ Lanes<K> fma(const Lanes<K>& a, const Lanes<K>& b, const Lanes<K>& c) {
  return map<K>([&](int i) { return ::fmaf(a.v[i], b.v[i], c.v[i]); });
}
template <int K> __device__ Lanes<K> max(const Lanes<K>& a, const Lanes<K>& b) {
  return map<K>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
template <int K> __device__ Lanes<K> min(const Lanes<K>& a, const Lanes<K>& b) {
  return map<K>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
#define HPCDL_LANES_UNARY(name, expression)                          \
  template <int K> __device__ Lanes<K> name(const Lanes<K>& a) {     \
    return map<K>([&](int i) { const float x = a.v[i]; return expression; }); \
  }
HPCDL_LANES_UNARY(exp, ::expf(x))
HPCDL_LANES_UNARY(log, ::logf(x))
HPCDL_LANES_UNARY(tanh, ::tanhf(x))
HPCDL_LANES_UNARY(erf, ::erff(x))
HPCDL_LANES_UNARY(sqrt, ::sqrtf(x))
HPCDL_LANES_UNARY(abs, ::fabsf(x))
HPCDL_LANES_UNARY(logistic2, 1.0f / (1.0f + ::exp2f(-x)))
HPCDL_LANES_UNARY(sigmoid, 1.0f / (1.0f + ::expf(-x)))
#undef HPCDL_LANES_UNARY

template <int K> __device__ float sum(const Lanes<K>& a) {
  float s = a.v[0];
#pragma unroll
  for (int i = 1; i < K; ++i) s += a.v[i];
  return s;
}
template <int K> __device__ float largest(const Lanes<K>& a) {
  float m = a.v[0];
#pragma unroll
  for (int i = 1; i < K; ++i) m = a.v[i] > m ? a.v[i] : m;
  return m;
}

// ---------------------------------------------------------------- memory

template <class T, int K> struct alignas(sizeof(T) * K) Pack {
  T v[K];
};

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(bf16 x) { return __uint_as_float(static_cast<unsigned>(x.bits) << 16); }
__device__ inline float widen(f16 x) { return __half2float(__ushort_as_half(x.bits)); }
template <class T> __device__ T narrow(float x);
template <> __device__ inline float narrow<float>(float x) { return x; }
template <> __device__ inline bf16 narrow<bf16>(float x) {
  const __nv_bfloat16 h = __float2bfloat16_rn(x);
  bf16 r;
  r.bits = __bfloat16_as_ushort(h);
  return r;
}

template <> __device__ inline f16 narrow<f16>(float x) {  // beyond 65504: infinite
  f16 r;
  r.bits = __half_as_ushort(__float2half_rn(x));
  return r;
}

template <int K, class T> __device__ bool one_access(const T* p) {
  return reinterpret_cast<unsigned long long>(p) % (sizeof(T) * K) == 0;
}

/// K elements at p, which may lie at any address. The test is the same for all threads of a row, so it costs next to nothing.
template <int K, class T> __device__ Lanes<K> load(const T* p) {
  Pack<T, K> pack;
  if (one_access<K>(p)) {
    pack = *reinterpret_cast<const Pack<T, K>*>(p);
  } else {
#pragma unroll
    for (int i = 0; i < K; ++i) pack.v[i] = p[i];
  }
  return map<K>([&](int i) { return widen(pack.v[i]); });
}
/// The first n of them; the others are `rest`.
template <int K, class T> __device__ Lanes<K> load(const T* p, int n, float rest = 0) {
  return n >= K ? load<K>(p) : map<K>([&](int i) { return i < n ? widen(p[i]) : rest; });
}
template <class T, int K> __device__ void store(T* p, const Lanes<K>& x) {
  Pack<T, K> pack;
#pragma unroll
  for (int i = 0; i < K; ++i) pack.v[i] = narrow<T>(x.v[i]);
  if (one_access<K>(p)) {
    *reinterpret_cast<Pack<T, K>*>(p) = pack;
  } else {
#pragma unroll
    for (int i = 0; i < K; ++i) p[i] = pack.v[i];
  }
}
template <class T, int K> __device__ void store(T* p, const Lanes<K>& x, int n) {
  if (n >= K) return store(p, x);
#pragma unroll
  for (int i = 0; i < K; ++i)
    if (i < n) p[i] = narrow<T>(x.v[i]);
}

}  // namespace hpcdl::cuda
