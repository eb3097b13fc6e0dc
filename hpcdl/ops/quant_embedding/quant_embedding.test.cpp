#include "hpcdl/ops/quant_embedding/quant_embedding.h"

#include "hpcdl/ops/quant_embedding/quant_embedding.spec.h"
#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

using enum QuantFormat;
using testing::Fill;
using testing::Input;
using Case = testing::OpSpec<QuantEmbedding>::Case;

Case rows(Shape ids, QuantFormat f, std::int64_t n, std::int64_t k, DType out = DType::f32,
          Input positions = Input::none(), Input places = Input::none()) {
  const auto p = quant_parts(f, n, k);
  const auto input = [&](const Spec& s) {
    if (!s) return Input::none();
    if (s.dtype == DType::f32) return Input(s.shape).as(DType::f32).filled(Fill::positive).fixed();
    return Input::indices(s.shape, f == mxfp4 && s == p.scale ? 128 : 60).as(s.dtype);  // so that scales are below 1
  };
  // Ids from -1 to n: both ends are out of range.
  return {.in = {Input::indices(ids, n + 1, true), input(p.codes), input(p.scale), input(p.outer), input(p.table),
                 positions.fixed(), places},
          .args = {.format = f, .dtype = out}};
}

const auto spec = testing::op<QuantEmbedding>({
    .cases = {rows({1}, nf4, 1, 64), rows({2, 9}, nf4_double, 37, 192), rows({50}, int8, 16, 96, DType::bf16),
              rows({3, 5}, q8_0, 100, 256), rows({0}, q8_0, 16, 64), rows({37}, q4_0, 33, 2304, DType::f16),
              rows({2, 5}, q4_k, 40, 256, DType::f32, Input({7, 256})),
              rows({2, 5}, q6_k, 40, 512, DType::f32, Input({5, 512}).as(DType::bf16)),
              rows({2, 5}, q6_k, 40, 256, DType::f32, Input({3, 256}), Input::indices({2, 5}, 3)),
              rows({2, 9}, rot3, 37, 512), rows({17}, rot_ternary, 9, 256, DType::bf16),
              rows({3, 5}, fp8, 40, 96, DType::f16), rows({3, 5}, fp8_blocks, 130, 160, DType::f16),
              rows({2, 5}, mxfp4, 33, 352, DType::f32, Input({7, 352}))},
    .reference = contract::quant_embedding_reference,
    .bf16 = false,  // the output type is an argument, not that of an input
});

}  // namespace
}  // namespace hpcdl
