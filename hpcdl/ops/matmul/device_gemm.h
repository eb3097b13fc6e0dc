#pragma once
// D = act(scale * A x B + bias) + residual on a GPU, with z, the value in front of the activation, kept where asked. A (M, K),
// B (K, N), either of them transposed, f32, bf16 or f16 each; products are formed in `compute`, sums are f32. Operands of another
// dtype are converted on their way into shared memory, so 16-bit products can read f32 master weights.
// The order of every sum depends on the shape alone.

#include "hpcdl/core/stream.h"

namespace hpcdl::cuda {

/// As gemm::Operand on a CPU, with the distance from one matrix of a batch to the next.
struct GemmOperand {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t ld = 0;
  bool transposed = false;
  std::int64_t batch_stride = 0;
};

enum class GemmActivation : unsigned char { none, relu, gelu_tanh, gelu_erf };

struct GemmResult {
  void* d = nullptr;
  DType dtype = DType::f32;
  std::int64_t ld = 0, batch_stride = 0;
  bool accumulate = false;
  float scale = 1;
  const void* bias = nullptr;  // (N)
  DType bias_dtype = DType::f32;
  void* z = nullptr;  // of D's dtype
  std::int64_t z_ld = 0;
  GemmActivation activation = GemmActivation::none;
  const void* residual = nullptr;  // of D's dtype
  std::int64_t residual_ld = 0;
};

struct Gemm {
  std::int64_t m = 0, n = 0, k = 0, batch = 1;
  DType compute = DType::f32;
  GemmOperand a, b;
  GemmResult out;
};

void gemm(Stream& s, const Gemm& g);

}  // namespace hpcdl::cuda
