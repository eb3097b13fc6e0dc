#pragma once
// The device's value types: Lanes, N floats that one thread computes on, and Pack, N elements as memory has them, moved
// in accesses of 16 bytes. Functors that the CPU runs on simd::Vec run on Lanes (ops/fuse/): same operators, same
// function names.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "hpcdl/dtype.h"

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
template <int K> __device__ Lanes<K> max(const Lanes<K>& a, const Lanes<K>& b) {  // NaN if either is NaN
  return map<K>([&](int i) {
    float r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a.v[i]), "f"(b.v[i]));
    return r;
  });
}
template <int K> __device__ Lanes<K> min(const Lanes<K>& a, const Lanes<K>& b) {
  return map<K>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}

/// 2^x and 1/x by the special function unit: 2 ulp and 1 ulp, subnormal results are 0.
__device__ inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// 1 / (1 + 2^-x).
__device__ inline float fast_logistic2(float x) { return fast_reciprocal(1.0f + fast_exp2(-x)); }

/// The normal distribution function, from -log2 Phi(-t) = 1 + t P(t) for t >= 0. P is the polynomial of degree 7 whose
/// largest error in t Phi(-t) is least (1.5e-8, by Lawson's iteration); its leading term is positive, so that Phi goes
/// to 0 beyond it.
__device__ inline float fast_normal_cdf(float x) {
  const float t = ::fabsf(x);
  float p = 2.3350611784056215e-6f;
  p = ::fmaf(p, t, -3.3739161175311165e-5f);
  p = ::fmaf(p, t, 1.6130013253219818e-4f);
  p = ::fmaf(p, t, 1.9168895592898570e-4f);
  p = ::fmaf(p, t, -7.1268478126306820e-3f);
  p = ::fmaf(p, t, 5.2533603400872306e-2f);
  p = ::fmaf(p, t, 4.5919828356507960e-1f);
  p = ::fmaf(p, t, 1.1511060418630088f);
  const float q = fast_exp2(::fmaf(-p, t, -1.0f));
  return x > 0.0f ? 1.0f - q : q;
}

#define HPCDL_LANES_UNARY(name, expression)                      \
  template <int K> __device__ Lanes<K> name(const Lanes<K>& a) { \
    return map<K>([&](int i) {                                   \
      const float x = a.v[i];                                    \
      return expression;                                         \
    });                                                          \
  }
HPCDL_LANES_UNARY(exp, ::expf(x))
HPCDL_LANES_UNARY(log, ::logf(x))
HPCDL_LANES_UNARY(tanh, ::tanhf(x))
HPCDL_LANES_UNARY(erf, ::erff(x))
HPCDL_LANES_UNARY(sqrt, ::sqrtf(x))
HPCDL_LANES_UNARY(abs, ::fabsf(x))
HPCDL_LANES_UNARY(logistic2, fast_logistic2(x))
HPCDL_LANES_UNARY(sigmoid, fast_logistic2(x * 1.4426950408889634f))
HPCDL_LANES_UNARY(normal_cdf, fast_normal_cdf(x))
HPCDL_LANES_UNARY(bell, fast_exp2(x* x * -0.72134752044448170f))
#undef HPCDL_LANES_UNARY

template <int K> __device__ float sum(const Lanes<K>& a) {
  float s = a.v[0];
#pragma unroll
  for (int i = 1; i < K; ++i) s += a.v[i];
  return s;
}
/// The maximum of the values that are not NaN.
template <int K> __device__ float largest(const Lanes<K>& a) {
  float m = a.v[0];
#pragma unroll
  for (int i = 1; i < K; ++i) m = ::fmaxf(m, a.v[i]);
  return m;
}

// ---------------------------------------------------------------- memory

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

/// K elements in their memory format, for loads in flight and for rows that are needed again. For 16-bit
/// types this takes half the registers of Lanes.
template <class T, int K> struct Pack {
  static_assert(sizeof(T) * K % 4 == 0 || K == 1);
  static constexpr int kBytes = static_cast<int>(sizeof(T)) * K, kWords = (kBytes + 3) / 4;
  /// Alignment of the widest access that moves it.
  static constexpr int kAlign = kBytes % 16 == 0 ? 16 : kBytes % 8 == 0 ? 8 : kBytes % 4 == 0 ? 4 : 2;
  unsigned w[kWords];

  __device__ T get(int i) const {
    if constexpr (sizeof(T) == 4) return __uint_as_float(w[i]);
    else return std::bit_cast<T>(static_cast<std::uint16_t>(w[i / 2] >> (i % 2 * 16)));
  }
  __device__ void set(int i, T x) {
    if constexpr (sizeof(T) == 4) w[i] = __float_as_uint(x);
    else if (i % 2 == 0) w[i / 2] = K == 1 ? x.bits : (w[i / 2] & 0xffff0000u) | x.bits;
    else w[i / 2] = (w[i / 2] & 0xffffu) | static_cast<unsigned>(x.bits) << 16;
  }
};

template <class T, int K> __device__ Lanes<K> widen(const Pack<T, K>& p) {
  return map<K>([&](int i) {
    if constexpr (sizeof(T) == 2 && dtype_of<T> == DType::bf16)
      return __uint_as_float(i % 2 == 0 ? p.w[i / 2] << 16 : p.w[i / 2] & 0xffff0000u);
    else return widen(p.get(i));
  });
}
/// The largest value that is not NaN; 16-bit elements two at a time.
template <class T, int K> __device__ float largest(const Pack<T, K>& p) {
  if constexpr (sizeof(T) == 4 || K == 1) {
    return largest(widen(p));
  } else {
    using Two = std::conditional_t<dtype_of<T> == DType::bf16, __nv_bfloat162, __half2>;
    Two m = reinterpret_cast<const Two&>(p.w[0]);
#pragma unroll
    for (int i = 1; i < K / 2; ++i) m = __hmax2(m, reinterpret_cast<const Two&>(p.w[i]));
    const auto& w = reinterpret_cast<const unsigned&>(m);
    return ::fmaxf(widen(std::bit_cast<T>(static_cast<std::uint16_t>(w))),
                   widen(std::bit_cast<T>(static_cast<std::uint16_t>(w >> 16))));
  }
}
/// Rounded two at a time.
template <class T, int K> __device__ Pack<T, K> pack(const Lanes<K>& x) {
  Pack<T, K> p;
  if constexpr (sizeof(T) == 4 || K == 1) {
#pragma unroll
    for (int i = 0; i < K; ++i) p.set(i, narrow<T>(x.v[i]));
  } else {
#pragma unroll
    for (int i = 0; i < K / 2; ++i) {
      if constexpr (dtype_of<T> == DType::bf16) {
        const __nv_bfloat162 two = __floats2bfloat162_rn(x.v[2 * i], x.v[2 * i + 1]);
        p.w[i] = reinterpret_cast<const unsigned&>(two);
      } else {
        const __half2 two = __floats2half2_rn(x.v[2 * i], x.v[2 * i + 1]);
        p.w[i] = reinterpret_cast<const unsigned&>(two);
      }
    }
  }
  return p;
}

template <int K, class T> __device__ bool one_access(const T* p) {
  return reinterpret_cast<unsigned long long>(p) % Pack<T, K>::kAlign == 0;
}

/// K elements at p, a multiple of Pack::kAlign.
template <int K, class T> __device__ Pack<T, K> read_aligned(const T* p) {
  using P = Pack<T, K>;
  P r;
  if constexpr (P::kAlign == 16) {
#pragma unroll
    for (int i = 0; i < P::kWords / 4; ++i) {
      const uint4 q = reinterpret_cast<const uint4*>(p)[i];
      r.w[4 * i] = q.x, r.w[4 * i + 1] = q.y, r.w[4 * i + 2] = q.z, r.w[4 * i + 3] = q.w;
    }
  } else if constexpr (P::kAlign == 8) {
#pragma unroll
    for (int i = 0; i < P::kWords / 2; ++i) {
      const uint2 q = reinterpret_cast<const uint2*>(p)[i];
      r.w[2 * i] = q.x, r.w[2 * i + 1] = q.y;
    }
  } else if constexpr (P::kAlign == 4) {
#pragma unroll
    for (int i = 0; i < P::kWords; ++i) r.w[i] = reinterpret_cast<const unsigned*>(p)[i];
  } else {
    r.w[0] = *reinterpret_cast<const unsigned short*>(p);
  }
  return r;
}
/// As assembly, because the compiler splits a vector store if the same elements may also be stored one by one.
template <class T, int K> __device__ void write_aligned(T* p, const Pack<T, K>& r) {
  using P = Pack<T, K>;
  if constexpr (P::kAlign == 16) {
#pragma unroll
    for (int i = 0; i < P::kWords / 4; ++i)
      asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(reinterpret_cast<uint4*>(p) + i), "r"(r.w[4 * i]),
                   "r"(r.w[4 * i + 1]), "r"(r.w[4 * i + 2]), "r"(r.w[4 * i + 3])
                   : "memory");
  } else if constexpr (P::kAlign == 8) {
#pragma unroll
    for (int i = 0; i < P::kWords / 2; ++i) reinterpret_cast<uint2*>(p)[i] = make_uint2(r.w[2 * i], r.w[2 * i + 1]);
  } else if constexpr (P::kAlign == 4) {
#pragma unroll
    for (int i = 0; i < P::kWords; ++i) reinterpret_cast<unsigned*>(p)[i] = r.w[i];
  } else {
    *reinterpret_cast<unsigned short*>(p) = static_cast<unsigned short>(r.w[0]);
  }
}

/// Elements [from, to) of the K at p, which may lie at any address; the others are `rest`, and their memory is not
/// touched.
template <int K, class T> __device__ Pack<T, K> read(const T* p, int from, int to, T rest) {
  if (from <= 0 && to >= K && one_access<K>(p)) return read_aligned<K>(p);
  Pack<T, K> r{};
  asm volatile("" : "+r"(from), "+r"(to));  // else the K comparisons of one pack are kept for the next operand
#pragma unroll
  for (int i = 0; i < K; ++i) r.set(i, i >= from && i < to ? p[i] : rest);
  return r;
}
template <class T, int K> __device__ void write(T* p, const Pack<T, K>& r, int from, int to) {
  if (from <= 0 && to >= K && one_access<K>(p)) return write_aligned(p, r);
  asm volatile("" : "+r"(from), "+r"(to));
#pragma unroll
  for (int i = 0; i < K; ++i)
    if (i >= from && i < to) p[i] = r.get(i);
}

/// K elements at p, which may be any address. The test is the same for all threads of a row, so it costs almost
/// nothing.
template <int K, class T> __device__ Lanes<K> load(const T* p) { return widen(read<K>(p, 0, K, T{})); }
/// Loads the first n of them; the others are `rest`.
template <int K, class T> __device__ Lanes<K> load(const T* p, int n, float rest = 0) {
  return widen(read<K>(p, 0, n, narrow<T>(rest)));
}
template <class T, int K> __device__ void store(T* p, const Lanes<K>& x) { write(p, pack<T>(x), 0, K); }
template <class T, int K> __device__ void store(T* p, const Lanes<K>& x, int n) { write(p, pack<T>(x), 0, n); }

}  // namespace hpcdl::cuda
