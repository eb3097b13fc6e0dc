#if HPCDL_CUDA
#include "tools/tune/tunables.h"

namespace hpcdl::lab::tune {
namespace {

std::string words(const cuda::Gemm& g) {
  std::string text = fmt::format("{}x{}x{}", g.m, g.n, g.k);
  if (g.batch > 1) text = fmt::format("{} of {}", g.batch, text);
  if (g.a.transposed || g.b.transposed)
    text += fmt::format(" {}{}", g.a.transposed ? 't' : 'n', g.b.transposed ? 't' : 'n');
  if (g.out.bias) text += " +bias";
  if (g.out.activation != cuda::GemmActivation::none)
    text += g.out.activation == cuda::GemmActivation::relu ? " relu" : " gelu";
  if (g.out.z) text += " keeps z";
  if (g.out.residual) text += g.out.residual_is_z ? " times slope" : " +residual";
  if (g.out.accumulate) text += " adds up";
  if (g.out.dtype != g.compute) text += " to " + type_name(g.out.dtype);
  return text;
}

/// The alignment that matters for copy engines and wide stores.
bool wide(const void* p, std::int64_t ld, std::int64_t batch_stride, DType d) {
  return reinterpret_cast<std::uintptr_t>(p) % 16 == 0 && ld * dtype_bytes(d) % 16 == 0 &&
         batch_stride * dtype_bytes(d) % 16 == 0;
}

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
    what.dtype = type_name(g.compute), what.shape = words(g), what.cost = cost_of(g);
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
    c.want = reference_gemm(bench.stream, c.at, g_);
    if (o.accumulate) {
      c.before = &allocate(d.spec());
      copy(bench.stream, *c.before, d);
    }
    results_.push_back(std::move(c));
  }
  std::vector<Candidate> candidates() override { return named(cuda::gemm_candidates(bench_.stream, g_)); }
  int built_in() override {
    cuda::set_gemm_chooser(nullptr);  // the built-in choice
    const int id = cuda::gemm_choice(bench_.stream, g_);
    follow_choices();
    return id;
  }

 private:
  void run(int id) override { cuda::gemm_with(bench_.stream, g_, id); }

  cuda::Gemm g_;
};

}  // namespace

std::array<std::int64_t, 19> fields_of(const cuda::Gemm& g) {
  const auto type = [](DType d) { return static_cast<std::int64_t>(d); };
  const auto& o = g.out;
  const std::int64_t parts = (o.accumulate ? 1 : 0) | (o.bias ? 2 : 0) | (o.z ? 4 : 0) | (o.residual ? 8 : 0) |
                             (o.residual_inside ? 16 : 0) | (o.residual_is_z ? 32 : 0);
  const std::int64_t wide_ones = (wide(g.a.data, g.a.ld, g.a.batch_stride, g.a.dtype) ? 1 : 0) |
                                 (wide(g.b.data, g.b.ld, g.b.batch_stride, g.b.dtype) ? 2 : 0) |
                                 (wide(o.d, o.ld, o.batch_stride, o.dtype) ? 4 : 0) |
                                 (wide(o.z, o.z_ld, 0, o.dtype) ? 8 : 0) |
                                 (wide(o.residual, o.residual_ld, o.residual_batch_stride, o.dtype) ? 16 : 0) |
                                 (reinterpret_cast<std::uintptr_t>(o.bias) % 16 == 0 ? 32 : 0);
  return {bucket(g.m),
          bucket(g.n),
          bucket(g.k),
          bucket(g.batch),
          g.m % 8 == 0,
          g.n % 8 == 0,
          g.k % 8 == 0,
          type(g.compute),
          type(g.a.dtype),
          g.a.transposed,
          type(g.b.dtype),
          g.b.transposed,
          g.b.batch_stride == 0,
          type(o.dtype),
          type(o.bias_dtype),
          static_cast<std::int64_t>(o.activation),
          parts,
          wide_ones,
          g.a.batch_stride == 0};
}

Wish wish_of(const cuda::Gemm& g) { return wish_for<GemmTunable>("gemm " + type_name(g.compute) + " " + words(g), g); }

}  // namespace hpcdl::lab::tune
#endif
