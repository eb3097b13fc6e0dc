#include "hpcdl/parallel/update.h"

#include "hpcdl/program/check.h"

namespace hpcdl::parallel {
namespace {

struct PackedArgs {
  Peers peers;
  std::int64_t count;
};

/// Operands: memory for all of them, then the tensors.
struct SumGradients {
  static constexpr std::string_view name = "sum_gradients";
  using RecordArgs = PackedArgs;
  static void check_record(const RawRecord& r) {
    const auto& a = r.args<PackedArgs>();
    require(a.peers.valid() && a.count >= 0 && a.count < 1 << 30, name, "its arguments are none");
    r.require_count(1 + a.count);
    std::int64_t size = 0;
    for (std::size_t i = 1; i < r.count(); ++i) {
      require(r.contiguous(i).dtype == DType::f32, name, "tensors must be F32, got {}", to_string(r.spec(i)));
      size += r.spec(i).size();
    }
    require_spec(name, "their place", r.contiguous(0), {{size}, DType::f32});
  }
  static void run(Stream& s, const Grad* t, const void* args);
};
void SumGradients::run(Stream& s, const Grad* t, const void* args) {
  const auto& a = *static_cast<const PackedArgs*>(args);
  const auto pieces = [&](auto&& f) {
    std::int64_t at = 0;
    for (std::int64_t i = 1; i <= a.count; ++i) {
      f(Tensor(t[0].ptr<float>() + at, t[i].spec(), t[0].device()), t[i]);
      at += t[i].size();
    }
  };
  pieces([&](const Tensor& packed, const Tensor& one) { copy(s, packed, one); });
  a.peers.all_reduce(s, t[0]);
  pieces([&](const Tensor& packed, const Tensor& one) { copy(s, one, packed); });
}

struct NormArgs {
  GradNorm::Args args;
  Peers peers;
  std::int64_t whole, parts, whole_blocks;
};

/// A f64 for each rank travels as it is: no transport needs to add them up.
Tensor as_words(const Tensor& t, std::int64_t first, std::int64_t count) {
  return Tensor(t.ptr<double>() + first, {{2 * count}, DType::i32}, t.device());
}

/// Operands: block sums, totals (of what all have, then of each rank's parts), gradients.
struct GradNormOfRanks {
  static constexpr std::string_view name = "grad_norm.ranks";
  using RecordArgs = NormArgs;
  static void check_record(const RawRecord& r) {
    const auto& a = r.args<NormArgs>();
    require(a.peers.valid() && valid_args(a.args) && std::min(a.whole, a.parts) >= 0 &&
                std::max(a.whole, a.parts) < 1 << 30,
            name, "its arguments are none");
    r.require_count(2 + a.whole + a.parts);
    std::int64_t blocks = 0, whole_blocks = 0;
    for (std::int64_t i = 0; i < a.whole + a.parts; ++i) {
      if (i == a.whole) whole_blocks = blocks;
      const auto at = static_cast<std::size_t>(i) + 2;
      blocks += tensor_blocks(require_float(name, r.contiguous(at), "gradient").shape.size());
    }
    if (a.parts == 0) whole_blocks = blocks;
    require(a.whole_blocks == whole_blocks, name, "{} blocks are not those of its tensors", a.whole_blocks);
    require_spec(name, "block sums", r.contiguous(0), {{blocks}, DType::f64});
    require_spec(name, "totals", r.contiguous(1), {{1 + a.peers.size()}, DType::f64});
  }
  static void run(Stream& s, const Grad* t, const void* args);
};
void GradNormOfRanks::run(Stream& s, const Grad* t, const void* args) {
  const auto& a = *static_cast<const NormArgs*>(args);
  const Tensor totals = t[1];
  const Grad *whole = t + 2, *parts = whole + a.whole;
  double* blocks = t[0].ptr<double>();
  const int mine = 1 + a.peers.rank();
  on(
      s,
      [&](auto isa, Pool& pool) {
        totals.ptr<double>()[0] = hpcdl::cpu::sum_of_squares(isa, pool, blocks, whole, a.whole);
        totals.ptr<double>()[mine] = hpcdl::cpu::sum_of_squares(isa, pool, blocks + a.whole_blocks, parts, a.parts);
      },
      [&](auto& q) {
        const Spec one{{1}, DType::f64};
        hpcdl::cuda::sum_of_squares(q, t[0], Tensor(totals.ptr<double>(), one, totals.device()), whole, a.whole);
        hpcdl::cuda::sum_of_squares(q, t[0], Tensor(totals.ptr<double>() + mine, one, totals.device()), parts, a.parts);
      });
  a.peers.all_gather(s, as_words(totals, 1, a.peers.size()), as_words(totals, mine, 1));
  on(
      s,
      [&](auto, Pool&) {
        double sum = 0;
        for (std::int64_t i = 0; i < totals.size(); ++i) sum += totals.ptr<double>()[i];
        GradNorm::finish(s.params(), sum, a.args);
      },
      [&](auto& q) { hpcdl::cuda::finish_norm(q, totals, a.args); });
}

}  // namespace

void record_sum_gradients(Graph& g, const std::vector<Var>& gradients, const Peers& peers) {
  if (gradients.empty()) return;
  std::vector<Operand> operands;
  std::int64_t size = 0;
  for (const auto& v : gradients) {
    require(v.dtype() == DType::f32, "sum_gradients", "tensors must be F32, got {}", to_string(v.spec()));
    operands.push_back(update_operand(v));
    size += v.shape().size();
  }
  operands.insert(operands.begin(), write_operand(g.temporary("sum_gradients.packed", {{size}, DType::f32})));
  PackedArgs args{peers.of("gradients of norms"), std::ssize(gradients)};
  clear_padding(args);
  emit_update<SumGradients>(g, operands, &args, sizeof args,
                            {static_cast<double>(size), 20.0 * static_cast<double>(size)}, &args.peers);
}

void record_grad_norm(Graph& g, const std::vector<Var>& whole, const std::vector<Var>& parts, const GradNorm::Args& a,
                      const Peers& peers) {
  std::vector<Operand> operands(2);
  Cost cost;
  std::int64_t blocks = 0, whole_blocks = 0;
  for (const auto* list : {&whole, &parts}) {
    for (const auto& v : *list) {
      require_float("grad_norm", v.spec(), "gradient");
      blocks += tensor_blocks(v.shape().size());
      cost += {2.0 * static_cast<double>(v.shape().size()), static_cast<double>(v.spec().bytes())};
      operands.push_back(read_operand(v));
    }
    if (list == &whole) whole_blocks = blocks;
  }
  operands[0] = write_operand(g.temporary("grad_norm.partial", {{blocks}, DType::f64}));
  operands[1] = write_operand(g.temporary("grad_norm.totals", {{1 + peers.size()}, DType::f64}));
  NormArgs args{a, peers.of("norm of the gradients"), std::ssize(whole), std::ssize(parts), whole_blocks};
  clear_padding(args);
  emit_update<GradNormOfRanks>(g, operands, &args, sizeof args, cost, &args.peers);
}

}  // namespace hpcdl::parallel
