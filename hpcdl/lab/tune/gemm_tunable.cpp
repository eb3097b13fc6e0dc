#if HPCDL_CUDA
#include "hpcdl/lab/tune/gemm_tunable.h"

#include "hpcdl/core/cuda_runtime.h"
#include "hpcdl/lab/tune/reference.h"

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

class GemmTunable : public Tunable {
 public:
  GemmTunable(Bench& bench, const cuda::Gemm& g) : bench_(bench), g_(g), fields_(fields_of(g)) {
    const Device device = bench.stream.device();
    std::uint64_t seed = 1;
    const auto make = [&](std::int64_t elements, DType d) {
      memory_.emplace_back(Spec{{elements}, d}, device);
      fill_random(bench.stream, memory_.back().tensor, seed++);
      return memory_.back().tensor.data();
    };
    const auto extent = [&](std::int64_t rows, std::int64_t ld, std::int64_t stride) {
      return (g.batch - 1) * stride + rows * ld;
    };
    g_.a.data = make(extent(g.a.transposed ? g.k : g.m, g.a.ld, g.a.batch_stride), g.a.dtype);
    g_.b.data = make(extent(g.b.transposed ? g.n : g.k, g.b.ld, g.b.batch_stride), g.b.dtype);
    auto& o = g_.out;
    if (o.bias) o.bias = make(g.n, o.bias_dtype);
    if (o.residual) o.residual = make(extent(g.m, o.residual_ld, o.residual_batch_stride), o.dtype);
    if (o.z) o.z = make(extent(g.m, o.z_ld, 0), o.dtype);
    o.d = make(extent(g.m, o.ld, o.batch_stride), o.dtype);
    before_ = OwnedTensor(memory_.back().tensor.spec(), device);
    copy(bench.stream, before_.tensor, memory_.back().tensor);
    at_ = samples_of(g.batch, g.m, g.n);
    want_ = reference_gemm(bench.stream, at_, g_);
  }

  Key key() const override { return {"gemm", {fields_.begin(), fields_.end()}}; }
  std::string dtype() const override { return type_name(g_.compute); }
  std::string shape() const override { return words(g_); }
  Cost cost() const override {
    const auto elements = [&](std::int64_t n, DType d) { return static_cast<double>(n * dtype_bytes(d)); };
    const double d = elements(g_.batch * g_.m * g_.n, g_.out.dtype), writes = d * (g_.out.z ? 2 : 1);
    const double reads = elements(g_.batch * g_.m * g_.k, g_.a.dtype) +
                         elements((g_.b.batch_stride ? g_.batch : 1) * g_.k * g_.n, g_.b.dtype) +
                         d * ((g_.out.residual ? 1 : 0) + (g_.out.accumulate ? 1 : 0));
    return {.operations = 2.0 * static_cast<double>(g_.batch) * static_cast<double>(g_.m) * static_cast<double>(g_.n) *
                          static_cast<double>(g_.k),
            .unit = unit_of(g_.compute),
            .reads = reads,
            .writes = writes};
  }
  std::vector<Candidate> candidates() override {
    std::vector<Candidate> list;
    for (const auto& c : cuda::gemm_candidates(bench_.stream, g_)) list.push_back({c.id, std::string(c.name)});
    return list;
  }
  int built_in() override {
    cuda::set_gemm_chooser(nullptr);  // the built-in choice
    const int id = cuda::gemm_choice(bench_.stream, g_);
    follow_choices();
    return id;
  }
  std::string verify(int id) override {
    Tensor d = memory_.back().tensor;
    if (g_.out.accumulate) copy(bench_.stream, d, before_.tensor);
    else
      cuda::check(cudaMemsetAsync(d.data(), 0xff, static_cast<std::size_t>(d.bytes()), cuda::queue(bench_.stream)),
                  "poison");  // NaN
    cuda::gemm_with(bench_.stream, g_, id);
    const auto got = gather(bench_.stream, at_, {g_.out.d, g_.out.dtype, g_.out.ld, g_.out.batch_stride});
    return difference(at_, want_, got, g_.out.dtype, g_.k);
  }
  double seconds(int id) override {
    return bench_.cold([&] { cuda::gemm_with(bench_.stream, g_, id); });
  }

 private:
  Bench& bench_;
  cuda::Gemm g_;
  std::array<std::int64_t, 19> fields_;
  std::vector<OwnedTensor> memory_;  // the last one is D
  OwnedTensor before_;
  std::vector<Sample> at_;
  Wanted want_;
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

Wish wish_of(const cuda::Gemm& g) {
  return {"gemm " + type_name(g.compute) + " " + words(g),
          [g](Bench& bench) { return std::make_unique<GemmTunable>(bench, g); }};
}

}  // namespace hpcdl::lab::tune
#endif
