// The epilogues built into the library.
#include "hpcdl/ops/matmul/gemm_kernel.h"

namespace hpcdl::gemm {

using namespace epilogue;
using simd::Isa;

#define HPCDL_GEMM(...) template void gemm(Isa, Pool&, const Problem&, const __VA_ARGS__&)
#define HPCDL_GEMM_FLOAT(T)                      \
  HPCDL_GEMM(Into<T>);                           \
  HPCDL_GEMM(Into<T, Scale>);                    \
  HPCDL_GEMM(Into<T, Chain<Residual<T>, Relu>>); \
  HPCDL_GEMM(IntoLinear<T, float, Identity>);    \
  HPCDL_GEMM(IntoLinear<T, float, Relu>);        \
  HPCDL_GEMM(IntoLinear<T, float, GeluTanh>);    \
  HPCDL_GEMM(IntoLinear<T, float, GeluErf>);     \
  HPCDL_GEMM(IntoLinear<T, bf16, Identity>);     \
  HPCDL_GEMM(IntoLinear<T, bf16, Relu>);         \
  HPCDL_GEMM(IntoLinear<T, bf16, GeluTanh>);     \
  HPCDL_GEMM(IntoLinear<T, bf16, GeluErf>);      \
  HPCDL_GEMM(IntoLinear<T, f16, Identity>);      \
  HPCDL_GEMM(IntoLinear<T, f16, Relu>);          \
  HPCDL_GEMM(IntoLinear<T, f16, GeluTanh>);      \
  HPCDL_GEMM(IntoLinear<T, f16, GeluErf>)

HPCDL_GEMM_FLOAT(float);
HPCDL_GEMM_FLOAT(bf16);
HPCDL_GEMM_FLOAT(f16);
#undef HPCDL_GEMM_FLOAT
#undef HPCDL_GEMM

template void gemm_alone(Isa, std::byte*, const Problem&, const Into<float, Scale>&);
template void gemm_alone(Isa, std::byte*, const Problem&, const Into<bf16, Scale>&);
template void gemm_alone(Isa, std::byte*, const Problem&, const Into<f16, Scale>&);
template void gemm_int8(Isa, Pool&, const Problem&, const Into<std::int32_t>&);
template void gemm_int8(Isa, Pool&, const Problem&, const Into<float, Chain<Dequant, Bias<float>>>&);
template void gemm_int8(Isa, Pool&, const Problem&, const Into<bf16, Chain<Dequant, Bias<float>>>&);

}  // namespace hpcdl::gemm
