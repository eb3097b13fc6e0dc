#if HPCDL_CUDA
#include "tools/tune/tunables.h"

namespace hpcdl::lab::tune {
namespace {

constexpr DType kInputs = DType::bf16;

class Int4Tunable : public GpuTunable {
 public:
  Int4Tunable(Bench& bench, const cuda::Int4Shape& s)
      : GpuTunable(bench, "int4_linear", fields_of(s)),
        args_{.exact = s.exact, .constant_weights = true},
        x_(random({{s.rows, s.k}, kInputs})),
        y_(allocate({{s.rows, s.n}, kInputs})),
        weight_{random(int4::packed_spec(s.n, s.k)), random(int4::scale_spec(s.n, s.k, s.group)), {}},
        shape_(cuda::int4_shape(bench.stream, y_, x_, weight_, {}, args_)) {
    const Spec operands[] = {x_.spec(), weight_.packed.spec(), weight_.scale.spec()};
    std::size_t i = 0;
    for (const auto& spec : Int4Linear::scratch(operands[0], operands[1], operands[2], {}, {}, {}, args_))
      scratch_[i++] = allocate(spec);
    what.dtype = "int4", what.shape = words_of(shape_);
    what.cost = Int4Linear::cost(operands[0], operands[1], operands[2], {}, {}, {}, args_);
    for (const auto& spec : operands) what.cost.reads += static_cast<double>(spec.bytes());
    what.cost.writes = static_cast<double>(y_.bytes());
    Checked c{y_, {y_.data(), y_.dtype(), s.n, 0}, samples_of(1, s.rows, s.n), {}, s.k};
    const auto reference = [&](Int4Reference r) { return reference_int4(bench.stream, c.at, x_, weight_, r); };
    want_ = reference(s.exact ? Int4Reference::exact : Int4Reference::rounded_x);
    want_of_widened_ = reference(Int4Reference::rounded_weights);
    results_.push_back(std::move(c));
  }
  std::string verify(int id) override {
    const auto ways = cuda::int4_ways(bench_.stream, shape_);
    const bool widened = std::any_of(ways.begin(), ways.end(), [&](const auto& w) { return w.id == id && w.widened; });
    results_[0].want = widened ? want_of_widened_ : want_;
    return GpuTunable::verify(id);
  }
  std::vector<Candidate> candidates() override { return named(cuda::int4_ways(bench_.stream, shape_)); }
  int built_in() override { return cuda::int4_built_in(bench_.stream, shape_); }

 private:
  void run(int id) override {
    cuda::int4_linear_by(id, bench_.stream, y_, x_, weight_, {}, {}, {scratch_[0], scratch_[1], scratch_[2]}, args_);
  }

  Int4Linear::Args args_;
  Tensor x_, y_;
  int4::Weight weight_;
  cuda::Int4Shape shape_;
  std::array<Tensor, 3> scratch_;
  Wanted want_, want_of_widened_;
};

}  // namespace

Wish wish_of(const cuda::Int4Shape& s) { return wish_for<Int4Tunable>("int4_linear " + words_of(s), s); }

}  // namespace hpcdl::lab::tune
#endif
