#if HPCDL_CUDA
#include "hpcdl/lab/tune/attention_tunable.h"

#include <algorithm>
#include <cmath>

#include "hpcdl/core/cuda_runtime.h"
#include "hpcdl/core/tolerance.h"
#include "hpcdl/lab/tune/reference.h"

namespace hpcdl::lab::tune {
namespace {

std::string words(const AttentionShape& s) {
  return fmt::format("{}x{}x{}x{}{}{}", s.batch, s.heads, s.queries, s.width,
                     s.keys == s.queries ? "" : fmt::format(" keys {}", s.keys), s.causal ? " causal" : "");
}

/// The reference is the kernels with plain f32 sums, which op specs compare with loops in double.
class AttentionTunable : public Tunable {
 public:
  AttentionTunable(Bench& bench, const AttentionShape& s)
      : bench_(bench),
        shape_(s),
        args_{.heads = static_cast<int>(s.heads),
              .kv_heads = static_cast<int>(s.kv_heads),
              .causal = s.causal,
              .scale = s.scale} {
    q_ = matrix(s.queries, s.heads), k_ = matrix(s.keys, s.kv_heads), v_ = matrix(s.keys, s.kv_heads),
    out_ = matrix(s.queries, s.heads);
    lse_ = OwnedTensor({{s.batch, s.heads, s.queries}, DType::f32}, bench.stream.device());
    scratch_ = OwnedTensor(Attention::scratch(q_.tensor.spec(), k_.tensor.spec(), v_.tensor.spec(), args_)[0],
                           bench.stream.device());
    fill_random(bench.stream, q_.tensor, 1), fill_random(bench.stream, k_.tensor, 2),
        fill_random(bench.stream, v_.tensor, 3);
  }
  Key key() const override {
    const auto f = fields_of(shape_);
    return {std::string(shape_.op()), {f.begin(), f.end()}};
  }
  std::string dtype() const override {
    return shape_.dtype == DType::bf16 ? "bf16" : shape_.dtype == DType::f16 ? "f16" : "f32";
  }
  std::string shape() const override { return words(shape_); }

 protected:
  OwnedTensor matrix(std::int64_t rows, std::int64_t heads) const {
    return OwnedTensor(Spec{{shape_.batch, rows, heads * shape_.width}, shape_.dtype}, bench_.stream.device());
  }
  cuda::Attend call() const {
    return {out_.tensor, lse_.tensor, q_.tensor, k_.tensor, v_.tensor, scratch_.tensor, args_};
  }
  /// What the op states, and the operands.
  Cost with_operands(Cost c, std::initializer_list<const OwnedTensor*> reads,
                     std::initializer_list<const OwnedTensor*> writes) const {
    c.unit = unit_of(shape_.dtype);
    for (const auto* t : reads) c.reads += static_cast<double>(t->tensor.bytes());
    for (const auto* t : writes) c.writes += static_cast<double>(t->tensor.bytes());
    return c;
  }
  void poison(const OwnedTensor& t) const {
    cuda::check(
        cudaMemsetAsync(t.tensor.data(), 0xff, static_cast<std::size_t>(t.tensor.bytes()), cuda::queue(bench_.stream)),
        "poison");
  }
  static std::vector<Candidate> named(std::span<const cuda::AttentionCandidate> all) {
    std::vector<Candidate> list;
    for (const auto& c : all) list.push_back({c.id, std::string(c.name)});
    return list;
  }
  /// Positions of a result, and the values that the plain kernel wrote there.
  struct Wants {
    std::vector<Sample> at;
    std::vector<double> value;
  };
  std::vector<double> got(const OwnedTensor& t, const std::vector<Sample>& at) const {
    const auto& x = t.tensor;
    return gather(bench_.stream, at, {x.data(), x.dtype(), x.shape()[2], x.shape()[1] * x.shape()[2]});
  }
  Wants wants(const OwnedTensor& t) const {
    Wants w{samples_of(t.tensor.shape()[0], t.tensor.shape()[1], t.tensor.shape()[2]), {}};
    w.value = got(t, w.at);
    return w;
  }
  /// If a kernel rounds probabilities to 16 bits before it sums them, each has an error of half a unit in the last
  /// place, and they sum to 1; the same holds for their gradients. In f32, tensor cores truncate each of three sums
  /// every 8 terms by up to 2^-23 of the partial sum, which is half of the sum on average.
  std::string difference(const char* what, const OwnedTensor& t, const Wants& want) const {
    const auto now = got(t, want.at);
    double off = 0, size = 0;
    for (std::size_t i = 0; i < now.size(); ++i)
      off += (now[i] - want.value[i]) * (now[i] - want.value[i]), size += want.value[i] * want.value[i];
    const auto terms = static_cast<double>(std::max(shape_.keys, shape_.queries * shape_.heads / shape_.kv_heads));
    const double error = std::sqrt(off / size),
                 allowed = t.tensor.dtype() == DType::f32 ? 1e-5 + terms * 3 / 8 * 0x1p-24 : 4 * half_ulp(shape_.dtype);
    return error <= allowed
               ? ""
               : fmt::format(
                     "{} differs from that of the plain kernel by {:.2g} of its size, but only {:.2g} is allowed", what,
                     error, allowed);
  }

  Bench& bench_;
  AttentionShape shape_;
  Attention::Args args_;
  OwnedTensor q_, k_, v_, out_, lse_, scratch_;
};

class ForwardTunable : public AttentionTunable {
 public:
  ForwardTunable(Bench& bench, const AttentionShape& s) : AttentionTunable(bench, s) {
    cuda::attend_plain(bench.stream, call());
    want_ = wants(out_), want_lse_ = wants(lse_);
  }
  Cost cost() const override {
    return with_operands(Attention::cost(q_.tensor.spec(), k_.tensor.spec(), v_.tensor.spec(), args_), {&q_, &k_, &v_},
                         {&out_, &lse_});
  }
  std::vector<Candidate> candidates() override { return named(cuda::attention_candidates(bench_.stream, call())); }
  int built_in() override { return cuda::attention_choice(bench_.stream, call()); }
  std::string verify(int id) override {
    poison(out_), poison(lse_);
    cuda::attention_with(bench_.stream, call(), id);
    const auto wrong = difference("the result", out_, want_);
    return wrong.empty() ? difference("the logarithm of the sums", lse_, want_lse_) : wrong;
  }
  double seconds(int id) override {
    return bench_.cold([&] { cuda::attention_with(bench_.stream, call(), id); });
  }

 private:
  Wants want_, want_lse_;
};

class BackwardTunable : public AttentionTunable {
 public:
  BackwardTunable(Bench& bench, const AttentionShape& s) : AttentionTunable(bench, s) {
    dout_ = matrix(s.queries, s.heads), dq_ = matrix(s.queries, s.heads), dk_ = matrix(s.keys, s.kv_heads),
    dv_ = matrix(s.keys, s.kv_heads);
    backward_scratch_ =
        OwnedTensor(Attention::backward_scratch(q_.tensor.spec(), k_.tensor.spec(), v_.tensor.spec(), args_)[0],
                    bench.stream.device());
    fill_random(bench.stream, dout_.tensor, 4);
    cuda::attend_plain(bench.stream, call());
    cuda::attend_backward_plain(bench.stream, gradients());
    want_q_ = wants(dq_), want_k_ = wants(dk_), want_v_ = wants(dv_);
  }
  Cost cost() const override {
    return with_operands(Attention::backward_cost(q_.tensor.spec(), k_.tensor.spec(), v_.tensor.spec(), args_),
                         {&q_, &k_, &v_, &out_, &lse_, &dout_}, {&dq_, &dk_, &dv_});
  }
  std::vector<Candidate> candidates() override {
    const WithNumerics numerics(bench_.stream, {.atomic_sums = shape_.atomic});
    return named(cuda::attention_candidates(bench_.stream, gradients()));
  }
  int built_in() override {
    const WithNumerics numerics(bench_.stream, {.atomic_sums = shape_.atomic});
    return cuda::attention_choice(bench_.stream, gradients());
  }
  std::string verify(int id) override {
    poison(dq_), poison(dk_), poison(dv_);
    cuda::attention_with(bench_.stream, gradients(), id);
    auto wrong = difference("dq", dq_, want_q_);
    if (wrong.empty()) wrong = difference("dk", dk_, want_k_);
    return wrong.empty() ? difference("dv", dv_, want_v_) : wrong;
  }
  double seconds(int id) override {
    return bench_.cold([&] { cuda::attention_with(bench_.stream, gradients(), id); });
  }

 private:
  cuda::AttendBackward gradients() const {
    cuda::AttendBackward c{call(), Grad(dq_.tensor, Write::overwrite), Grad(dk_.tensor, Write::overwrite),
                           Grad(dv_.tensor, Write::overwrite), dout_.tensor};
    c.scratch = backward_scratch_.tensor;
    return c;
  }

  OwnedTensor dout_, dq_, dk_, dv_, backward_scratch_;
  Wants want_q_, want_k_, want_v_;
};

bool aligned(const View& v) {
  bool all = reinterpret_cast<std::uintptr_t>(v.data()) % 16 == 0;
  for (int d = 0; d + 1 < v.rank(); ++d) all = all && v.strides()[d] * dtype_bytes(v.dtype()) % 16 == 0;
  return all;
}

}  // namespace

AttentionShape shape_of(const Stream&, const cuda::Attend& c) {
  return {c.q[0],       c.q[1],      c.k[1],        c.args.heads,
          c.kv_heads(), c.width(),   c.args.causal, aligned(c.q) && aligned(c.k) && aligned(c.v) && aligned(c.out),
          c.q.dtype(),  c.args.scale};
}
AttentionShape shape_of(const Stream& stream, const cuda::AttendBackward& c) {
  auto s = shape_of(stream, static_cast<const cuda::Attend&>(c));
  for (const View& v : {c.dout, View(c.dq), View(c.dk), View(c.dv)}) s.aligned = s.aligned && (!v || aligned(v));
  s.backward = true, s.atomic = stream.numerics().atomic_sums;
  return s;
}

std::array<std::int64_t, 10> fields_of(const AttentionShape& s) {
  return {bucket(s.batch), bucket(s.queries), bucket(s.keys),
          s.heads,         s.kv_heads,        s.width,
          s.causal,        s.aligned,         static_cast<std::int64_t>(s.dtype),
          s.atomic};
}

Wish wish_of(const AttentionShape& s) {
  return {fmt::format("{} {}", s.backward ? "gradients of attention" : "attention", words(s)),
          [s](Bench& bench) -> std::unique_ptr<Tunable> {
            if (s.backward) return std::make_unique<BackwardTunable>(bench, s);
            return std::make_unique<ForwardTunable>(bench, s);
          }};
}

}  // namespace hpcdl::lab::tune
#endif
