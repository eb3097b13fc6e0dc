#pragma once
// Kernels that were broken on purpose, each in one way, and correct ones that must not be reported. They prove that
// `hpcdl verify` finds errors: `hpcdl verify --planted`.

#include <cstdint>
#include <cstring>
#include <vector>

#include "hpcdl/dtype.h"
#include "hpcdl/kernel_abi.h"

namespace hpcdl::lab::verify::planted {

struct Planted {
  hpcdl_kernel kernel;
  const char* fault;  // what is wrong with it; nullptr: nothing
};
using Corpus = std::vector<Planted>;

/// All planted kernels; they live as long as the process.
const Corpus& corpus();

using Run = int (*)(const hpcdl_call*);
inline constexpr std::uint32_t kF32 = HPCDL_TAKES_F32, kBf16 = HPCDL_TAKES_BF16, kBoth = kF32 | kBf16;

struct Adder {
  Corpus& list;
  const char* contract;
  std::int32_t device = HPCDL_ON_CPU;
  void good(const char* name, Run run, std::uint32_t dtypes = kF32, std::uint32_t flags = 0,
            std::int64_t (*workspace)(const hpcdl_call*) = nullptr) {
    list.push_back({{contract, name, dtypes, flags, device, run, workspace, nullptr}, nullptr});
  }
  void bad(const char* name, const char* fault, Run run, std::uint32_t dtypes = kF32, std::uint32_t flags = 0,
           std::int64_t (*workspace)(const hpcdl_call*) = nullptr) {
    list.push_back({{contract, name, dtypes, flags, device, run, workspace, nullptr}, fault});
  }
};

// Each file adds its own kernels.
void add_softmax(Corpus&);
void add_norms(Corpus&);
void add_elementwise(Corpus&);
void add_matmul(Corpus&);
void add_attention(Corpus&);
void add_others(Corpus&);
#if HPCDL_CUDA
void add_gpu(Corpus&);
#endif

template <class T> const T* in(const hpcdl_call* c, int i) { return static_cast<const T*>(c->inputs[i].data); }
template <class T> T* out(const hpcdl_call* c, int i) { return static_cast<T*>(c->outputs[i].data); }
inline std::int64_t size(const hpcdl_tensor& t) {
  std::int64_t n = 1;
  for (int i = 0; i < t.rank; ++i) n *= t.shape[i];
  return n;
}
inline std::int64_t cols(const hpcdl_tensor& t) { return t.shape[t.rank - 1]; }
inline std::int64_t rows(const hpcdl_tensor& t) { return cols(t) ? size(t) / cols(t) : 0; }
template <class T> const T& args(const hpcdl_call* c) { return *static_cast<const T*>(c->args); }

/// Calls f.template operator()<T>() with the float type of tensor `t`.
template <class F> int with_type(const hpcdl_tensor& t, F f) {
  if (t.dtype == HPCDL_BF16) f.template operator()<bf16>();
  else f.template operator()<float>();
  return HPCDL_OK;
}

}  // namespace hpcdl::lab::verify::planted
