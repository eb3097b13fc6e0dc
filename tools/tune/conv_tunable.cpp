#if HPCDL_CUDA
#include "hpcdl/core/tolerance.h"
#include "tools/tune/tunables.h"

namespace hpcdl::lab::tune {
namespace {

/// The reference is our own kernel with a f32 result, which tests compare with loops in double.
class ConvTunable : public GpuTunable {
 public:
  ConvTunable(Bench& bench, const cuda::Conv& c) : GpuTunable(bench, "conv2d", fields_of(c)), conv_(c) {
    what.dtype = type_name(c.compute), what.shape = words_of(c);
    what.cost = {.operations = c.shape.flops(), .unit = unit_of(c.compute)};
    const auto& s = c.shape;
    const std::int64_t sizes[] = {s.pixels() * s.o, s.n * s.h * s.w * s.i, s.o * s.k()};
    const auto make = [&](std::int64_t n, DType d) {
      const Tensor& t = random(n, d);
      what.cost.reads += static_cast<double>(t.bytes());
      return t.data();
    };
    if (c.pass != cuda::ConvPass::data) conv_.x.data = make(sizes[1], c.x.dtype);
    if (c.pass != cuda::ConvPass::weight) conv_.w.data = make(sizes[2], c.w.dtype);
    if (c.pass != cuda::ConvPass::forward) conv_.dy.data = make(sizes[0], c.dy.dtype);
    if (c.bias.data) conv_.bias.data = make(s.o, c.bias.dtype);
    const std::int64_t size = sizes[static_cast<int>(c.pass)], cols = c.pass == cuda::ConvPass::forward ? s.o
                                                                      : c.pass == cuda::ConvPass::data  ? s.i
                                                                                                        : s.k();
    const Tensor& out = random(size, c.out_dtype);
    conv_.out = out.data(), what.cost.writes = static_cast<double>(out.bytes());
    Checked r{out, {conv_.out, c.out_dtype, cols, 0}, samples_of(1, size / cols, cols), {}};
    r.what = "the result differs from the f32 sums of our own kernel";
    r.allowed = c.out_dtype == DType::f32 ? 1e-5 : 4 * half_ulp(c.out_dtype);
    r.poison = c.accumulate ? 0 : 0xff;  // sums start at 0
    OwnedTensor exact(Spec{{size}, DType::f32}, bench.stream.device());
    cuda::Conv reference = conv_;
    reference.out = exact.tensor.data(), reference.out_dtype = DType::f32, reference.accumulate = false;
    cuda::conv_with(bench.stream, reference, cuda::kConvOwn);
    r.want.value = gather(bench.stream, r.at, {exact.tensor.data(), DType::f32, cols, 0});
    results_.push_back(std::move(r));
  }
  std::vector<Candidate> candidates() override { return named(cuda::conv_candidates(bench_.stream, conv_, true)); }
  int built_in() override { return cuda::conv_choice(bench_.stream, conv_); }

 private:
  void run(int id) override { cuda::conv_with(bench_.stream, conv_, id); }

  cuda::Conv conv_;
};

}  // namespace

Wish wish_of(const cuda::Conv& c) {
  return wish_for<ConvTunable>("conv2d " + type_name(c.compute) + " " + words_of(c), c);
}

}  // namespace hpcdl::lab::tune
#endif
