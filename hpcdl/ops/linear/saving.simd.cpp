#include "hpcdl/ops/linear/saving.h"

#include "hpcdl/ops/matmul/gemm_kernel.h"

namespace hpcdl::cpu {
namespace {

namespace ep = epilogue;

/// epilogue::Save that also prefetches the destination of the tile below into L1, as the driver does for y: stores that
/// waited for their lines from memory took a tenth of the time of 256 rows.
struct SaveAhead {
  static constexpr std::int64_t kTileRows = 8;
  float* to;
  std::int64_t ld;
  template <class V, class At> V operator()(V acc, const At& at) const {
    at.put(to, ld, acc);
    __builtin_prefetch(to + (at.i + kTileRows) * ld + at.j, 1, 3);
    return acc;
  }
};

}  // namespace

template <class Isa>
void linear_saving(Isa isa, Pool& pool, const gemm::Problem& p, Tensor y, Tensor z, View bias, View residual,
                   Activation act) {
  const auto run = [&]<class Act>() {
    using Into = ep::Into<float, ep::Chain<ep::Bias<float>, SaveAhead, Act, ep::Residual<float>>>;
    gemm::gemm(isa, pool, p,
               Into{.d = y.ptr<float>(),
                    .ld = y.row_stride(),
                    .f = {{bias.ptr<float>()},
                          {z.ptr<float>(), z.row_stride()},
                          {},
                          {residual.ptr<float>(), residual ? residual.row_stride() : 0}}});
  };
  switch (act) {
    case Activation::none: return run.template operator()<ep::Identity>();
    case Activation::relu: return run.template operator()<ep::Relu>();
    case Activation::gelu_tanh: return run.template operator()<ep::GeluTanh>();
    case Activation::gelu_erf: return run.template operator()<ep::GeluErf>();
  }
}

template void linear_saving(simd::Isa, Pool&, const gemm::Problem&, Tensor, Tensor, View, View, Activation);

}  // namespace hpcdl::cpu
