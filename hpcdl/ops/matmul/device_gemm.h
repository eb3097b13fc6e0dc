#pragma once
// D = act(scale * A x B + bias) + residual on a GPU; z, the argument of the activation, is stored if requested. A (M,
// K) and B (K, N) may each be transposed, and f32, bf16 or f16; products are computed in `compute`, sums are f32.
// Operands of another dtype are rounded first, so 16-bit products can read f32 master weights. The order of every sum
// depends only on the shape.

#include <array>
#include <cstdint>
#include <span>
#include <string>
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

/// The properties of a product that determine its ways: those of its key, under "gemm" (core/ways.h).
std::array<std::int64_t, 19> fields_of(const Gemm& g);
/// Sizes and epilogue, for people: "4096x4096x4096 +bias gelu".
std::string words_of(const Gemm& g);

/// Computes D as above in the way that the stream's table says for this product, else in the fastest known one for its
/// shape.
void gemm(Stream& s, const Gemm& g);

/// A way to compute a product: a kernel with its tile and the order in which it visits tiles, or cuBLASLt. All of them
/// give results within the same bounds, with different bits; each is reproducible bit for bit.
struct GemmCandidate {
  int id;
  std::string_view name;
};

/// The ways that can compute g on the stream's GPU, without or with cuBLASLt's other choices, which take a while to
/// ask for. Valid until the calling thread's next call.
std::span<const GemmCandidate> gemm_candidates(Stream& s, const Gemm& g, bool others = false);
/// Runs one of them.
void gemm_with(Stream& s, const Gemm& g, int candidate);
/// The candidate that gemm() uses.
int gemm_choice(Stream& s, const Gemm& g);
/// The names of all ways, by id.
std::span<const std::string> gemm_ways();

}  // namespace hpcdl::cuda
