#pragma once
// The global L2 norm over many gradients, and the clip factor computed from it. A record without tensor outputs: it
// writes to StepParams
//
//   grad_norm   = |grad_scale| * sqrt(sum of squares over all gradients)
//   clip_factor = min(1, max_norm / (grad_norm + 1e-6)), 1 where max_norm <= 0        as torch.nn.utils.clip_grad_norm_
//   skip        = 1 when grad_norm is not finite, else 0                               only with Args::skip_nonfinite
//
// for the optimizer records that follow. Squares are summed by blocks of 8192 elements in float and the blocks in
// double, both in an order that does not depend on the number of threads. Gradients beyond 1e19 overflow to inf, which
// skips the step.

#include <span>
#include <vector>

#include "hpcdl/ops/many_tensors.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/emit.h"

namespace hpcdl {

namespace detail {
struct GradNormRecord;
}

struct GradNorm {
  static constexpr std::string_view name = "grad_norm";
  struct Args {
    float max_norm = 1;
    bool skip_nonfinite = true;
  };
  /// Operands: block sums (f64, one per block of all gradients), then the gradients.
  using RecordArgs = detail::GradNormRecord;
  static void run(Stream& s, const Grad* operands, const void* args);
  static void check_record(const RawRecord& r);
  /// Sets grad_norm, clip_factor and skip from the sum of squares of the unscaled gradients.
  static void finish(StepParams& p, double squares, const Args& a);
};

namespace cpu {
/// partial[block] = sum of squares of the block, with blocks numbered as by for_tensor_blocks. Returns their sum.
template <class Isa> double sum_of_squares(Isa, Pool&, double* partial, const Grad* gradients, std::int64_t count);
}  // namespace cpu
namespace cuda {
void grad_norm(Stream&, Tensor partial, const Grad* gradients, std::int64_t count, const GradNorm::Args& args);
/// The parts of the op: partial[block] = sum of squares of the block, as on a CPU; total (f64, 1) = the sum of these, or
/// of any others; and GradNorm::finish() for the sum of any number of totals.
void squares_of_blocks(Stream&, Tensor partial, const Grad* gradients, std::int64_t count);
void sum_blocks(Stream&, Tensor total, View partial);
void sum_of_squares(Stream&, Tensor partial, Tensor total, const Grad* gradients, std::int64_t count);
void finish_norm(Stream&, View totals, const GradNorm::Args& args);
}  // namespace cuda

namespace detail {
struct GradNormRecord {
  GradNorm::Args args;
  std::int64_t count = 0;
};
}  // namespace detail

/// Records the norm of `gradients` (contiguous, f32 or bf16).
template <class Graph, Symbolic V>
void record_grad_norm(Graph& g, std::span<const V> gradients, const GradNorm::Args& a) {
  std::int64_t blocks = 0;
  double elements = 0;
  for (const auto& v : gradients) {
    require_float(GradNorm::name, v.spec(), "gradient");
    blocks += tensor_blocks(v.spec().size());
    elements += static_cast<double>(v.spec().size());
  }
  const V partial = g.temporary("grad_norm.partial", {{blocks}, DType::f64});
  std::vector operands{write_operand(partial)};
  for (const auto& v : gradients) operands.push_back(read_operand(v));
  detail::GradNormRecord args{a, static_cast<std::int64_t>(gradients.size())};
  clear_padding(args);
  emit_update<GradNorm>(g, operands, &args, sizeof args, {.operations = 2 * elements});
}
template <class Graph, Symbolic V>
void record_grad_norm(Graph& g, const std::vector<V>& gradients, const GradNorm::Args& a) {
  record_grad_norm(g, std::span<const V>(gradients), a);
}

}  // namespace hpcdl
