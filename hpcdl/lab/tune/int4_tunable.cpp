#if HPCDL_CUDA
#include "hpcdl/lab/tune/int4_tunable.h"

#include "hpcdl/core/cuda_runtime.h"
#include "hpcdl/lab/tune/reference.h"

namespace hpcdl::lab::tune {
namespace {

constexpr DType kInputs = DType::bf16;

std::string words(const cuda::Int4Shape& s) {
  return fmt::format("{}x{}x{} group {}{}", s.rows, s.n, s.k, s.group, s.exact ? " exact" : "");
}

class Int4Tunable : public Tunable {
 public:
  Int4Tunable(Bench& bench, const cuda::Int4Shape& shape)
      : bench_(bench),
        shape_(shape),
        x_({{shape.rows, shape.k}, kInputs}, bench.stream.device()),
        y_({{shape.rows, shape.n}, kInputs}, bench.stream.device()),
        packed_(int4::packed_spec(shape.n, shape.k), bench.stream.device()),
        scale_(int4::scale_spec(shape.n, shape.k, shape.group), bench.stream.device()),
        at_(samples_of(1, shape.rows, shape.n)) {
    shape_ = cuda::int4_shape(x_.tensor, weight(), args());
    std::size_t i = 0;
    for (const auto& spec :
         Int4Linear::scratch(x_.tensor.spec(), packed_.tensor.spec(), scale_.tensor.spec(), {}, {}, {}, args()))
      scratch_[i++] = OwnedTensor(spec, x_.tensor.device());
    fill_random(bench_.stream, x_.tensor, 1), fill_random(bench_.stream, packed_.tensor, 2),
        fill_random(bench_.stream, scale_.tensor, 3);
    want_ = reference_int4(bench_.stream, at_, x_.tensor, weight(), shape.exact);
  }

  Key key() const override {
    const auto f = fields_of(shape_);
    return {"int4_linear", {f.begin(), f.end()}};
  }
  std::string dtype() const override { return "int4"; }
  std::string shape() const override { return words(shape_); }
  Cost cost() const override {
    Cost c = Int4Linear::cost(x_.tensor.spec(), packed_.tensor.spec(), scale_.tensor.spec(), {}, {}, {}, args());
    for (const auto* t : {&x_, &packed_, &scale_}) c.reads += static_cast<double>(t->tensor.bytes());
    c.writes = static_cast<double>(y_.tensor.bytes());
    return c;
  }
  std::vector<Candidate> candidates() override {
    std::vector<Candidate> list;
    for (const auto& w : cuda::int4_ways(bench_.stream, shape_)) list.push_back({w.id, std::string(w.name)});
    return list;
  }
  int built_in() override { return cuda::int4_built_in(bench_.stream, shape_); }
  std::string verify(int id) override {
    cuda::check(cudaMemsetAsync(y_.tensor.data(), 0xff, static_cast<std::size_t>(y_.tensor.bytes()),
                                cuda::queue(bench_.stream)),
                "poison");  // NaN
    run(id);
    const auto got = gather(bench_.stream, at_, {y_.tensor.data(), y_.tensor.dtype(), shape_.n, 0});
    return difference(at_, want_, got, y_.tensor.dtype(), shape_.k);
  }
  double seconds(int id) override {
    return bench_.cold([&] { run(id); });
  }

 private:
  Int4Linear::Args args() const { return {.exact = shape_.exact, .constant_weights = true}; }
  int4::Weight weight() const { return {packed_.tensor, scale_.tensor, {}}; }
  void run(int id) {
    cuda::int4_linear_by(id, bench_.stream, y_.tensor, x_.tensor, weight(), {}, {},
                         {scratch_[0].tensor, scratch_[1].tensor, scratch_[2].tensor}, args());
  }

  Bench& bench_;
  cuda::Int4Shape shape_;
  OwnedTensor x_, y_, packed_, scale_;
  std::array<OwnedTensor, 3> scratch_;
  std::vector<Sample> at_;
  Wanted want_;
};

}  // namespace

std::array<std::int64_t, 5> fields_of(const cuda::Int4Shape& s) {
  return {bucket(s.rows), bucket(s.n), bucket(s.k), s.group, s.exact};
}

Wish wish_of(const cuda::Int4Shape& shape) {
  return {"int4_linear " + words(shape), [shape](Bench& bench) { return std::make_unique<Int4Tunable>(bench, shape); }};
}

}  // namespace hpcdl::lab::tune
#endif
