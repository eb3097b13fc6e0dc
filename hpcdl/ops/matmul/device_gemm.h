#pragma once
// D = act(scale * A x B + bias) + residual on a GPU; z, the argument of the activation, is stored if requested. A (M,
// K) and B (K, N) may each be transposed, and f32, bf16 or f16; products are computed in `compute`, sums are f32.
// Operands of another dtype are rounded first, so 16-bit products can read f32 master weights. The order of every sum
// depends only on the shape.

#include <span>
#include <string_view>

#include "hpcdl/stream.h"

namespace hpcdl::cuda {

/// Like gemm::Operand on a CPU, plus the distance between the matrices of a batch.
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
  std::int64_t residual_ld = 0, residual_batch_stride = 0;
  bool residual_inside = false;  // added before the activation (and included in z): D = act(A x B + C)
  bool residual_is_z = false;    // D = (A x B) act'(C): the gradient with respect to C
};

struct Gemm {
  std::int64_t m = 0, n = 0, k = 0, batch = 1;
  DType compute = DType::f32;
  GemmOperand a, b;
  GemmResult out;
  bool tf32 = false;  // f32: operands may be cut to TF32 (gemm() adds what Numerics::products says)
  bool constant_b =
      false;  // no kernel writes B while programs run: it may be read before the previous kernel has ended
};

/// Computes D as above in the fastest known way for this product: that of set_gemm_chooser(), else one chosen by the
/// shape.
void gemm(Stream& s, const Gemm& g);

/// A way to compute a product: a kernel with its tile and the order in which it visits tiles, or cuBLASLt. All of them
/// give results within the same bounds, with different bits; each is reproducible bit for bit.
struct GemmCandidate {
  int id;
  std::string_view name;
};

/// The ways that can compute g on the stream's GPU. Valid until the calling thread's next call.
std::span<const GemmCandidate> gemm_candidates(Stream& s, const Gemm& g);
/// Runs one of them.
void gemm_with(Stream& s, const Gemm& g, int candidate);
/// The candidate that gemm() uses.
int gemm_choice(Stream& s, const Gemm& g);

/// Called first by gemm(): returns the id of a candidate, or -1 for the built-in choice. Must not be changed while
/// another thread launches.
using GemmChooser = int (*)(const Gemm& g);
void set_gemm_chooser(GemmChooser chooser);

}  // namespace hpcdl::cuda
