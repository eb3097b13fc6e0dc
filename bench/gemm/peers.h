#pragma once
// The other libraries behind one interface. A library that was not found when configuring makes no call.

#include <cstdint>
#include <functional>

#include "hpcdl/ops/matmul/gemm.h"

namespace hpcdl::bench {

enum class Post { none, relu, gelu_tanh, bias_gelu_tanh, add_relu };

/// One product D (m, n; f32, or s32 for int8) = post(A B), A f32, bf16 or u8, B alike (int8: s8).
struct Case {
  std::int64_t m, n, k;
  gemm::Compute compute = gemm::Compute::f32;
  bool a_transposed = false, b_transposed = false;
  Post post = Post::none;
};

/// call(a, b, d) of one side; b is the result of `prepare` for the weight. Empty: the library is missing or cannot do
/// it.
struct Peer {
  std::function<void(const void* a, const void* b, void* d)> call;
  std::int64_t prepared_bytes = 0;
  std::function<void(const void* b, void* prepared)> prepare;
};

/// `post` reads `bias` (n) and `addend` (m, n).
Peer onednn(const Case& c, bool packed, const float* bias, const float* addend);
Peer openblas(const Case& c);
const char* onednn_version();
const char* openblas_version();

}  // namespace hpcdl::bench
