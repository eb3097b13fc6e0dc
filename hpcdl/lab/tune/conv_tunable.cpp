#if HPCDL_CUDA
#include "hpcdl/lab/tune/conv_tunable.h"

#include <cmath>

#include "hpcdl/core/cuda_runtime.h"
#include "hpcdl/core/tolerance.h"
#include "hpcdl/lab/tune/reference.h"

namespace hpcdl::lab::tune {
namespace {

std::string words(const cuda::Conv& c) {
  const auto& s = c.shape;
  const char* passes[] = {"forward", "data", "weight"};
  std::string text =
      fmt::format("{} {}x{}x{}x{} to {}, {}x{}", passes[static_cast<int>(c.pass)], s.n, s.h, s.w, s.i, s.o, s.kh, s.kw);
  if (s.stride != 1) text += fmt::format(" stride {}", s.stride);
  if (s.dilation != 1) text += fmt::format(" dilation {}", s.dilation);
  if (c.bias.data) text += " +bias";
  if (c.accumulate) text += " adds up";
  return text;
}

/// The reference is our own kernel with a f32 result, which tests compare with loops in double.
class ConvTunable : public Tunable {
 public:
  ConvTunable(Bench& bench, const cuda::Conv& c) : bench_(bench), conv_(c), fields_(fields_of(c)) {
    const auto& s = c.shape;
    const std::int64_t sizes[] = {s.pixels() * s.o, s.n * s.h * s.w * s.i, s.o * s.k()};
    std::uint64_t seed = 1;
    const auto make = [&](std::int64_t n, DType d) {
      memory_.emplace_back(Spec{{n}, d}, bench.stream.device());
      fill_random(bench.stream, memory_.back().tensor, seed++);
      return memory_.back().tensor.data();
    };
    if (c.pass != cuda::ConvPass::data) conv_.x.data = make(sizes[1], c.x.dtype);
    if (c.pass != cuda::ConvPass::weight) conv_.w.data = make(sizes[2], c.w.dtype);
    if (c.pass != cuda::ConvPass::forward) conv_.dy.data = make(sizes[0], c.dy.dtype);
    if (c.bias.data) conv_.bias.data = make(s.o, c.bias.dtype);
    size_ = sizes[static_cast<int>(c.pass)], cols_ = c.pass == cuda::ConvPass::forward ? s.o
                                                     : c.pass == cuda::ConvPass::data  ? s.i
                                                                                       : s.k();
    conv_.out = make(size_, c.out_dtype);
    at_ = samples_of(1, size_ / cols_, cols_);
    OwnedTensor exact(Spec{{size_}, DType::f32}, bench.stream.device());
    cuda::Conv reference = conv_;
    reference.out = exact.tensor.data(), reference.out_dtype = DType::f32, reference.accumulate = false;
    cuda::conv_with(bench.stream, reference, cuda::kConvOwn);
    want_ = gather(bench.stream, at_, {exact.tensor.data(), DType::f32, cols_, 0});
  }

  Key key() const override { return {"conv2d", {fields_.begin(), fields_.end()}}; }
  std::string dtype() const override { return type_name(conv_.compute); }
  std::string shape() const override { return words(conv_); }
  Cost cost() const override {
    Cost c{.operations = conv_.shape.flops(), .unit = unit_of(conv_.compute)};
    for (const auto& m : memory_) (&m == &memory_.back() ? c.writes : c.reads) += static_cast<double>(m.tensor.bytes());
    return c;
  }
  std::vector<Candidate> candidates() override {
    std::vector<Candidate> list;
    for (const auto& c : cuda::conv_candidates(bench_.stream, conv_, true)) list.push_back({c.id, std::string(c.name)});
    return list;
  }
  int built_in() override {
    cuda::set_conv_chooser(nullptr);  // the built-in choice
    const int id = cuda::conv_choice(bench_.stream, conv_);
    follow_choices();
    return id;
  }
  std::string verify(int id) override {
    const int poison = conv_.accumulate ? 0 : 0xff;  // sums start at 0
    cuda::check(cudaMemsetAsync(conv_.out, poison, static_cast<std::size_t>(memory_.back().tensor.bytes()),
                                cuda::queue(bench_.stream)),
                "poison");
    cuda::conv_with(bench_.stream, conv_, id);
    const auto got = gather(bench_.stream, at_, {conv_.out, conv_.out_dtype, cols_, 0});
    double off = 0, size = 0;
    for (std::size_t i = 0; i < got.size(); ++i)
      off += (got[i] - want_[i]) * (got[i] - want_[i]), size += want_[i] * want_[i];
    const double error = std::sqrt(off / size),
                 allowed = conv_.out_dtype == DType::f32 ? 1e-5 : 4 * half_ulp(conv_.out_dtype);
    return error <= allowed
               ? ""
               : fmt::format(
                     "differs from the f32 sums of our own kernel by {:.2g} of their size, but only {:.2g} is allowed",
                     error, allowed);
  }
  double seconds(int id) override {
    return bench_.cold([&] { cuda::conv_with(bench_.stream, conv_, id); });
  }

 private:
  Bench& bench_;
  cuda::Conv conv_;
  std::array<std::int64_t, 14> fields_;
  std::int64_t size_ = 0, cols_ = 0;
  std::vector<OwnedTensor> memory_;  // the last one is the result
  std::vector<Sample> at_;
  std::vector<double> want_;
};

}  // namespace

std::array<std::int64_t, 14> fields_of(const cuda::Conv& c) {
  const auto& s = c.shape;
  const auto wide = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0 ? 1 : 0; };
  const std::int64_t aligned =
      wide(c.x.data) | wide(c.w.data) << 1 | wide(c.dy.data) << 2 | wide(c.bias.data) << 3 | wide(c.out) << 4;
  const auto type = [](DType d) { return static_cast<std::int64_t>(d); };
  const std::int64_t types = type(c.compute) | type(c.w.dtype) << 8 | type(c.out_dtype) << 16 |
                             type(c.bias.data ? c.bias.dtype : DType::none) << 24;
  return {static_cast<std::int64_t>(c.pass),
          types,
          c.accumulate ? 1 : 0,
          aligned,
          s.n,
          s.h,
          s.w,
          s.i,
          s.o,
          s.kh,
          s.kw,
          s.stride,
          s.pad,
          s.dilation};
}

Wish wish_of(const cuda::Conv& c) {
  return {"conv2d " + type_name(c.compute) + " " + words(c),
          [c](Bench& bench) { return std::make_unique<ConvTunable>(bench, c); }};
}

}  // namespace hpcdl::lab::tune
#endif
