#if HPCDL_CUDA
#include "tools/tune/tunables.h"

namespace hpcdl::lab::tune {
namespace {

Cost cost_of(const cuda::Gemm& g) {
  const auto bytes = [](std::int64_t n, DType d) { return static_cast<double>(n * dtype_bytes(d)); };
  const double d = bytes(g.batch * g.m * g.n, g.out.dtype);
  return {.operations = 2.0 * static_cast<double>(g.batch) * static_cast<double>(g.m) * static_cast<double>(g.n) *
                        static_cast<double>(g.k),
          .unit = unit_of(g.compute),
          .reads = bytes(g.batch * g.m * g.k, g.a.dtype) +
                   bytes((g.b.batch_stride ? g.batch : 1) * g.k * g.n, g.b.dtype) +
                   d * ((g.out.residual ? 1 : 0) + (g.out.accumulate ? 1 : 0)),
          .writes = d * (g.out.z ? 2 : 1)};
}

class GemmTunable : public GpuTunable {
 public:
  GemmTunable(Bench& bench, const cuda::Gemm& g) : GpuTunable(bench, "gemm", fields_of(g)), g_(g) {
    what.dtype = type_name(g.compute), what.shape = words_of(g), what.cost = cost_of(g);
    const auto make = [&](std::int64_t rows, std::int64_t ld, std::int64_t stride, DType d) {
      return random((g.batch - 1) * stride + rows * ld, d).data();
    };
    auto& o = g_.out;
    g_.a.data = make(g.a.transposed ? g.k : g.m, g.a.ld, g.a.batch_stride, g.a.dtype);
    g_.b.data = make(g.b.transposed ? g.n : g.k, g.b.ld, g.b.batch_stride, g.b.dtype);
    if (o.bias) o.bias = random(g.n, o.bias_dtype).data();
    if (o.residual) o.residual = make(g.m, o.residual_ld, o.residual_batch_stride, o.dtype);
    if (o.z) o.z = make(g.m, o.z_ld, 0, o.dtype);
    const Tensor& d = random((g.batch - 1) * o.batch_stride + g.m * o.ld, o.dtype);
    o.d = d.data();
    Checked c{d, {o.d, o.dtype, o.ld, o.batch_stride}, samples_of(g.batch, g.m, g.n), {}, g.k};
    if (g.tf32) c.rounding = 0x1p-9;  // each operand loses up to 2^-10
    c.want = reference_gemm(bench.stream, c.at, g_);
    if (o.accumulate) {
      c.before = &allocate(d.spec());
      copy(bench.stream, *c.before, d);
    }
    results_.push_back(std::move(c));
  }
  std::vector<Candidate> candidates() override { return named(cuda::gemm_candidates(bench_.stream, g_, true)); }
  int built_in() override { return cuda::gemm_choice(bench_.stream, g_); }

 private:
  void run(int id) override { cuda::gemm_with(bench_.stream, g_, id); }

  cuda::Gemm g_;
};

}  // namespace

Wish wish_of(const cuda::Gemm& g) {
  return wish_for<GemmTunable>("gemm " + type_name(g.compute) + " " + words_of(g), g);
}

}  // namespace hpcdl::lab::tune
#endif
