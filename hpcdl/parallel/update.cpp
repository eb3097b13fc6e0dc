#include "hpcdl/parallel/update.h"

#include "hpcdl/program/check.h"
#include "hpcdl/program/on.h"

namespace hpcdl::parallel {
namespace {

struct PackArgs {
  std::int64_t count;
  bool unpack;
};

/// Operands: memory for all tensors, then the tensors, f32; copies these into it, or back.
struct PackGradients {
  static constexpr std::string_view name = "pack_gradients";
  using RecordArgs = PackArgs;
  static void check_record(const RawRecord& r) {
    const auto& a = r.args<PackArgs>();
    require(valid_args(a.unpack) && a.count >= 0 && a.count < 1 << 30, name, "its arguments are not valid");
    r.require_count(1 + a.count);
    std::int64_t size = 0;
    for (std::size_t i = 1; i < r.count(); ++i) {
      require(r.contiguous(i).dtype == DType::f32, name, "tensors must be F32, got {}", to_string(r.spec(i)));
      size += r.spec(i).size();
    }
    require_spec(name, "their place", r.contiguous(0), {{size}, DType::f32});
  }
  static void run(Stream& s, const Grad* t, const void* args) {
    const auto& a = *static_cast<const PackArgs*>(args);
    std::int64_t at = 0;
    for (std::int64_t i = 1; i <= a.count; at += t[i++].size()) {
      const Tensor packed(t[0].ptr<float>() + at, t[i].spec(), t[0].device());
      if (a.unpack) copy(s, t[i], packed);
      else copy(s, packed, t[i]);
    }
  }
};

struct SquaresArgs {
  std::int64_t whole, parts, whole_blocks;
};

/// Operands: block sums, the sums of squares of the tensors that all ranks have and of this rank's parts, gradients.
struct SumsOfSquares {
  static constexpr std::string_view name = "grad_norm.squares";
  using RecordArgs = SquaresArgs;
  static void check_record(const RawRecord& r) {
    const auto& a = r.args<SquaresArgs>();
    require(std::min(a.whole, a.parts) >= 0 && std::max(a.whole, a.parts) < 1 << 30, name,
            "its arguments are not valid");
    r.require_count(3 + a.whole + a.parts);
    std::int64_t blocks = 0, whole_blocks = 0;
    for (std::int64_t i = 0; i < a.whole + a.parts; ++i) {
      if (i == a.whole) whole_blocks = blocks;
      const auto at = static_cast<std::size_t>(i) + 3;
      blocks += tensor_blocks(require_float(name, r.contiguous(at), "gradient").shape.size());
    }
    if (a.parts == 0) whole_blocks = blocks;
    require(a.whole_blocks == whole_blocks, name, "expected the number of blocks of its tensors, got {}",
            a.whole_blocks);
    require_spec(name, "block sums", r.contiguous(0), {{blocks}, DType::f64});
    for (const std::size_t i : {1u, 2u}) require_spec(name, "a total", r.contiguous(i), {{1}, DType::f64});
  }
  static void run(Stream& s, const Grad* t, const void* args) {
    const auto& a = *static_cast<const SquaresArgs*>(args);
    const Grad *whole = t + 3, *parts = whole + a.whole;
    double* blocks = t[0].ptr<double>();
    on(
        s,
        [&](auto isa, Pool& pool) {
          *t[1].ptr<double>() = hpcdl::cpu::sum_of_squares(isa, pool, blocks, whole, a.whole);
          *t[2].ptr<double>() = hpcdl::cpu::sum_of_squares(isa, pool, blocks + a.whole_blocks, parts, a.parts);
        },
        [&](auto& q) {
          hpcdl::cuda::sum_of_squares(q, t[0], t[1], whole, a.whole);
          hpcdl::cuda::sum_of_squares(q, t[0], t[2], parts, a.parts);
        });
  }
};

/// Applies GradNorm::finish() to the sum of its operand, f64.
struct NormOfTotals {
  static constexpr std::string_view name = "grad_norm.finish";
  using RecordArgs = GradNorm::Args;
  static void check_record(const RawRecord& r) {
    r.require_count(1);
    require(valid_args(r.args<GradNorm::Args>()), name, "its arguments are not valid");
    require(r.contiguous(0).dtype == DType::f64, name, "totals must be F64, got {}", to_string(r.spec(0)));
  }
  static void run(Stream& s, const Grad* t, const void* args) {
    const auto& a = *static_cast<const GradNorm::Args*>(args);
    on(
        s,
        [&](auto, Pool&) {
          double sum = 0;
          for (std::int64_t i = 0; i < t[0].size(); ++i) sum += t[0].ptr<double>()[i];
          GradNorm::finish(s.params(), sum, a);
        },
        [&](auto& q) { hpcdl::cuda::finish_norm(q, t[0], a); });
  }
};

}  // namespace

void record_sum_gradients(Graph& g, const std::vector<Var>& gradients, const Axis& axis) {
  if (gradients.empty()) return;
  std::int64_t size = 0;
  for (const auto& v : gradients) {
    require(v.dtype() == DType::f32, "sum_gradients", "tensors must be F32, got {}", to_string(v.spec()));
    size += v.shape().size();
  }
  const Var packed = g.temporary("gradients.packed", {{size}, DType::f32});
  const auto pack = [&](bool unpack) {
    std::vector operands{unpack ? read_operand(packed) : write_operand(packed)};
    for (const auto& v : gradients) operands.push_back(unpack ? write_operand(v) : read_operand(v));
    PackArgs args{std::ssize(gradients), unpack};
    clear_padding(args);
    emit_update<PackGradients>(g, operands, &args, sizeof args);
  };
  pack(false);
  const Operand all[] = {update_operand(packed)};
  emit_op<AllReduce>(g, all, {axis.with("gradients of norms")}, Phase::update);
  pack(true);
}

void record_grad_norm(Graph& g, const std::vector<Var>& whole, const std::vector<Var>& parts, const GradNorm::Args& a,
                      const Axis& axis) {
  std::vector<Operand> operands(3);
  double elements = 0;
  std::int64_t blocks = 0, whole_blocks = 0;
  for (const auto* list : {&whole, &parts}) {
    for (const auto& v : *list) {
      require_float("grad_norm", v.spec(), "gradient");
      blocks += tensor_blocks(v.shape().size());
      elements += static_cast<double>(v.shape().size());
      operands.push_back(read_operand(v));
    }
    if (list == &whole) whole_blocks = blocks;
  }
  const Var mine = g.temporary("grad_norm.mine", {{1}, DType::f64}),
            totals = g.temporary("grad_norm.totals", {{1 + axis.ranks}, DType::f64});
  operands[0] = write_operand(g.temporary("grad_norm.partial", {{blocks}, DType::f64}));
  operands[1] = write_operand(g.slice(totals, 0, 1)), operands[2] = write_operand(mine);
  const SquaresArgs args{std::ssize(whole), std::ssize(parts), whole_blocks};
  emit_update<SumsOfSquares>(g, operands, &args, sizeof args, {.operations = 2 * elements});
  const Operand gathered[] = {write_operand(g.slice(totals, 1, axis.ranks)), read_operand(mine)};
  emit_op<AllGather>(g, gathered, {axis.with("norm of the gradients")}, Phase::update);
  record_norm_of_totals(g, totals, a);
}

void record_norm_of_totals(Graph& g, const Var& totals, const GradNorm::Args& a) {
  auto norm = a;
  clear_padding(norm);
  emit_update<NormOfTotals>(g, std::vector{read_operand(totals)}, &norm, sizeof norm);
}

}  // namespace hpcdl::parallel
