#if HPCDL_CUDA
#include "hpcdl/lab/tune/attention_tunable.h"

#include <cmath>

#include "hpcdl/core/cuda_runtime.h"
#include "hpcdl/core/tolerance.h"
#include "hpcdl/lab/tune/reference.h"

namespace hpcdl::lab::tune {
namespace {

std::string words(const AttentionShape& s) {
  return fmt::format("{}x{}x{}x{}{}{}", s.batch, s.heads, s.queries, s.width, s.keys == s.queries ? "" : fmt::format(" keys {}", s.keys), s.causal ? " causal" : "");
}

/// The forward pass. The reference is the kernel of plain f32 sums, which op specs hold against loops in double.
class AttentionTunable : public Tunable {
 public:
  AttentionTunable(Bench& bench, const AttentionShape& s) : bench_(bench), shape_(s), args_{.heads = static_cast<int>(s.heads), .kv_heads = static_cast<int>(s.kv_heads), .causal = s.causal, .scale = s.scale} {
    const auto matrix = [&](std::int64_t rows, std::int64_t heads) { return OwnedTensor(Spec{{s.batch, rows, heads * s.width}, s.dtype}, bench.stream.device()); };
    q_ = matrix(s.queries, s.heads), k_ = matrix(s.keys, s.kv_heads), v_ = matrix(s.keys, s.kv_heads), out_ = matrix(s.queries, s.heads);
    lse_ = OwnedTensor({{s.batch, s.heads, s.queries}, DType::f32}, bench.stream.device());
    scratch_ = OwnedTensor(Attention::scratch(q_.tensor.spec(), k_.tensor.spec(), v_.tensor.spec(), args_)[0], bench.stream.device());
    fill_random(bench.stream, q_.tensor, 1), fill_random(bench.stream, k_.tensor, 2), fill_random(bench.stream, v_.tensor, 3);
    at_ = samples_of(s.batch, s.queries, s.heads * s.width);
    cuda::attend_plain(bench.stream, call());
    want_ = gather(bench.stream, at_, elements());
  }

  Key key() const override {
    const auto f = fields_of(shape_);
    return {"attention", {f.begin(), f.end()}};
  }
  std::string dtype() const override { return shape_.dtype == DType::bf16 ? "bf16" : shape_.dtype == DType::f16 ? "f16" : "f32"; }
  std::string shape() const override { return words(shape_); }
  Work work() const override {
    const Cost c = Attention::cost(q_.tensor.spec(), k_.tensor.spec(), v_.tensor.spec(), args_);
    return {.flops = c.flops, .dtype = shape_.dtype, .bytes = c.bytes, .writes = static_cast<double>(out_.tensor.bytes())};
  }
  std::vector<Candidate> candidates() override {
    std::vector<Candidate> list;
    const auto all = cuda::attention_candidates(bench_.stream, call());
    for (const auto& c : all) list.push_back({c.id, std::string(c.name)});
    return list;
  }
  int built_in() override { return cuda::attention_choice(bench_.stream, call()); }
  /// Probabilities that a kernel rounds to 16 bits before it sums are off by half a unit in the last place each, and sum up to 1.
  std::string verify(int id) override {
    cuda::check(cudaMemsetAsync(out_.tensor.data(), 0xff, static_cast<std::size_t>(out_.tensor.bytes()), cuda::queue(bench_.stream)), "poison");
    cuda::attention_with(bench_.stream, call(), id);
    const auto got = gather(bench_.stream, at_, elements());
    double off = 0, size = 0;
    for (std::size_t i = 0; i < got.size(); ++i) off += (got[i] - want_[i]) * (got[i] - want_[i]), size += want_[i] * want_[i];
    const double error = std::sqrt(off / size), allowed = shape_.dtype == DType::f32 ? 1e-5 : 4 * half_ulp(shape_.dtype);
    return error <= allowed ? "" : fmt::format("differs from the plain kernel by {:.2g} of its size, {:.2g} are allowed", error, allowed);
  }
  double seconds(int id) override {
    return bench_.cold([&] { cuda::attention_with(bench_.stream, call(), id); });
  }

 private:
  cuda::Attend call() const { return {out_.tensor, lse_.tensor, q_.tensor, k_.tensor, v_.tensor, scratch_.tensor, args_}; }
  Elements elements() const { return {out_.tensor.data(), shape_.dtype, shape_.heads * shape_.width, shape_.queries * shape_.heads * shape_.width}; }

  Bench& bench_;
  AttentionShape shape_;
  Attention::Args args_;
  OwnedTensor q_, k_, v_, out_, lse_, scratch_;
  std::vector<Sample> at_;
  std::vector<double> want_;
};

}  // namespace

AttentionShape shape_of(const cuda::Attend& c) {
  const auto aligned = [](const View& v) {
    bool all = reinterpret_cast<std::uintptr_t>(v.data()) % 16 == 0;
    for (int d = 0; d + 1 < v.rank(); ++d) all = all && v.strides()[d] * dtype_bytes(v.dtype()) % 16 == 0;
    return all;
  };
  return {c.q[0], c.q[1], c.k[1], c.args.heads, c.kv_heads(), c.width(), c.args.causal, aligned(c.q) && aligned(c.k) && aligned(c.v) && aligned(c.out), c.q.dtype(), c.args.scale};
}

std::array<std::int64_t, 9> fields_of(const AttentionShape& s) {
  return {bucket(s.batch), bucket(s.queries), bucket(s.keys), s.heads, s.kv_heads, s.width, s.causal, s.aligned, static_cast<std::int64_t>(s.dtype)};
}

Wish wish_of(const AttentionShape& s) {
  return {"attention " + words(s), [s](Bench& bench) { return std::make_unique<AttentionTunable>(bench, s); }};
}

}  // namespace hpcdl::lab::tune
#endif
