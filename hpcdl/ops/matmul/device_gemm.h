#pragma once
// D = act(scale * A x B + bias) + residual on a GPU, with z, the value in front of the activation, kept where asked. A
// (M, K), B (K, N), either of them transposed, f32, bf16 or f16 each; products are formed in `compute`, sums are f32.
// Operands of another dtype are rounded first, so 16-bit products can read f32 master weights. The order of every sum
// depends on the shape alone.

#include <span>
#include <string_view>

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
  std::int64_t residual_ld = 0, residual_batch_stride = 0;
  bool residual_inside = false;  // added in front of the activation (and in z): D = act(A x B + C)
  bool residual_is_z = false;    // D = (A x B) act'(C) instead: the gradient in front of an activation that saw C
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

/// D = ... as above, by the fastest way known for this product: set_gemm_chooser()'s, else one picked from the shape.
void gemm(Stream& s, const Gemm& g);

/// A way to compute a product: a kernel with its tile and the order it walks them in, or cuBLASLt. All of them give
/// results within the same bounds, each its own bits; each repeats them.
struct GemmCandidate {
  int id;
  std::string_view name;
};

/// The ways that can compute g on the stream's GPU. Valid until the calling thread's next call.
std::span<const GemmCandidate> gemm_candidates(Stream& s, const Gemm& g);
/// One of them.
void gemm_with(Stream& s, const Gemm& g, int candidate);
/// The one that gemm() takes.
int gemm_choice(Stream& s, const Gemm& g);

/// Asked first by gemm(): the id of a candidate, or -1 for the choice built in. Not to be changed while another thread
/// launches.
using GemmChooser = int (*)(const Gemm& g);
void set_gemm_chooser(GemmChooser chooser);

}  // namespace hpcdl::cuda
