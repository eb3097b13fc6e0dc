#include "hpcdl/ops/linear/packed.h"

#include "hpcdl/ops/linear/product.h"
#include "hpcdl/program/on.h"

namespace hpcdl {
namespace {

constexpr std::string_view kName = "pack_linear";

}  // namespace

PackedWeight::PackedWeight(Pool& pool, const View& w, DType x, bool conv1d) {
  require_float(kName, w.spec(), "weight");
  require(w.rank() == 2 && w[0] > 0 && w[1] > 0, kName, "weight must be a matrix that is not empty, got {}",
          to_string(w.spec()));
  const std::int64_t n = w[conv1d ? 1 : 0], k = w[conv1d ? 0 : 1];
  spec_ = require_float(kName, {{n, k}, x}, "activations");
  set_ =
      &simd::with_isa([&](auto isa) -> const gemm::KernelSet& { return gemm::kernel_set(isa, gemm::compute_of(x)); });
  memory_ = Buffer(gemm::packed_b_bytes(*set_, n, k));
  gemm::pack_b(*set_, pool, memory_.data(), {w.data(), w.dtype(), w.row_stride(), !conv1d}, n, k);
}

Spec linear_spec(const Spec& x, const PackedWeight& w, const Spec& bias, const Spec& residual) {
  const Spec y = linear_spec(Linear::name, x, w.spec(), bias, residual, {});
  require(x.dtype == w.spec().dtype, Linear::name, "the weight was packed for x of {}, got {}",
          dtype_name(w.spec().dtype), to_string(x));
  return y;
}

void linear(Stream& s, Tensor y, View x, const PackedWeight& w, View bias, View residual, Activation activation) {
  on(s, [&](auto isa, Pool& pool) {
    const gemm::Problem p{.m = x.rows(),
                          .n = w.spec_[0],
                          .k = w.spec_[1],
                          .compute = gemm::compute_of(x.dtype()),
                          .a = {x.data(), x.dtype(), x.row_stride(), false},
                          .packed_b = w.memory_.data(),
                          .row_invariant = s.numerics().row_invariant};
    require(w.set_ == &gemm::kernel_set(isa, p.compute), Linear::name,
            "the weight was packed for another instruction set than {}: pack it again",
            simd::isa_name(simd::active_isa()));
    cpu::linear_product(isa, pool, p, y, Tensor(), bias, residual, activation);
  });
}

}  // namespace hpcdl
