#if HPCDL_CUDA
#include <algorithm>

#include "hpcdl/core/tolerance.h"
#include "tools/tune/tunables.h"

namespace hpcdl::lab::tune {
namespace {

/// The reference is the kernels with plain f32 sums, which op specs compare with loops in double.
class AttentionTunable : public GpuTunable {
 public:
  AttentionTunable(Bench& bench, const cuda::AttentionShape& s)
      : GpuTunable(bench, s.op(), fields_of(s)), shape_(s), numerics_{.atomic_sums = s.atomic} {
    const Attention::Args args{.heads = static_cast<int>(s.heads),
                               .kv_heads = static_cast<int>(s.kv_heads),
                               .causal = s.causal,
                               .scale = s.scale};
    const Spec q = matrix(s.queries, s.heads), kv = matrix(s.keys, s.kv_heads);
    auto& c = call_;
    c.args = args;
    const Tensor out = allocate(q), lse = allocate({{s.batch, s.heads, s.queries}, DType::f32});
    c.q = random(q), c.k = random(kv), c.v = random(kv), c.out = out, c.lse = lse;
    c.scratch = allocate(Attention::scratch(q, kv, kv, args)[0]);
    what.dtype = type_name(s.dtype), what.shape = words_of(s);
    cuda::attend_plain(bench.stream, c);
    if (!s.backward) {
      what.cost = with_operands(Attention::cost(q, kv, kv, args), {c.q, c.k, c.v}, {c.out, c.lse});
      want("the result", out), want("the logarithm of the sums", lse);
      return;
    }
    const Tensor dq = allocate(q), dk = allocate(kv), dv = allocate(kv);
    c.scratch = allocate(Attention::backward_scratch(q, kv, kv, args)[0]);
    c.dout = random(q);
    c.dq = {dq, Write::overwrite}, c.dk = {dk, Write::overwrite}, c.dv = {dv, Write::overwrite};
    cuda::attend_backward_plain(bench.stream, c);
    what.cost =
        with_operands(Attention::backward_cost(q, kv, kv, args), {c.q, c.k, c.v, c.out, c.lse, c.dout}, {dq, dk, dv});
    want("dq", dq), want("dk", dk), want("dv", dv);
  }
  std::vector<Candidate> candidates() override {
    const WithNumerics numerics(bench_.stream, numerics_);
    return named(shape_.backward ? cuda::attention_candidates(bench_.stream, call_)
                                 : cuda::attention_candidates(bench_.stream, forward()));
  }
  int built_in() override {
    const WithNumerics numerics(bench_.stream, numerics_);
    return shape_.backward ? cuda::attention_choice(bench_.stream, call_)
                           : cuda::attention_choice(bench_.stream, forward());
  }

 private:
  void run(int id) override {
    const WithNumerics numerics(bench_.stream, numerics_);
    if (shape_.backward) cuda::attention_with(bench_.stream, call_, id);
    else cuda::attention_with(bench_.stream, forward(), id);
  }
  const cuda::Attend& forward() const { return call_; }
  Spec matrix(std::int64_t rows, std::int64_t heads) const {
    return {{shape_.batch, rows, heads * shape_.width}, shape_.dtype};
  }
  /// What the op states, and the operands.
  Cost with_operands(Cost c, std::initializer_list<View> reads, std::initializer_list<View> writes) const {
    c.unit = unit_of(shape_.dtype);
    for (const auto& t : reads) c.reads += static_cast<double>(t.bytes());
    for (const auto& t : writes) c.writes += static_cast<double>(t.bytes());
    return c;
  }
  /// If a kernel rounds probabilities to 16 bits before it sums them, each has an error of half a unit in the last
  /// place, and they sum to 1; the same holds for their gradients. In f32, tensor cores truncate each of three sums
  /// every 8 terms by up to 2^-23 of the partial sum, which is half of the sum on average.
  void want(const std::string& name, const Tensor& t) {
    const auto terms = static_cast<double>(std::max(shape_.keys, shape_.queries * shape_.heads / shape_.kv_heads));
    keep_as_wanted(name + " differs from that of the plain kernel", t,
                   t.dtype() == DType::f32 ? 1e-5 + terms * 3 / 8 * 0x1p-24 : 4 * half_ulp(shape_.dtype));
  }

  cuda::AttentionShape shape_;
  Numerics numerics_;
  cuda::AttendBackward call_;  // forward, the first part of it
};

}  // namespace

Wish wish_of(const cuda::AttentionShape& s) {
  return wish_for<AttentionTunable>(
      fmt::format("{} {}", s.backward ? "gradients of attention" : "attention", words_of(s)), s);
}

}  // namespace hpcdl::lab::tune
#endif
