#include "hpcdl/ops/int4_embedding/int4_embedding.h"

#include <cmath>
#include <limits>

#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

using testing::Expected;
using testing::Fill;
using testing::Input;
using testing::Values;
using Case = testing::OpSpec<Int4Embedding>::Case;

Case rows(Shape ids, std::int64_t n, std::int64_t k, std::int64_t g, bool asymmetric, DType out = DType::f32,
          Input positions = Input::none(), Input places = Input::none()) {
  const Input scales = Input({n, k / g}).as(DType::bf16).filled(Fill::uniform).fixed();
  // Ids from -1 to n: both ends are out of range.
  return {.in = {Input::indices(ids, n + 1, true), Input::indices({n, k / 2}, 256).as(DType::u8), scales,
                 asymmetric ? scales : Input::none(), positions.fixed(), places},
          .args = {.dtype = out}};
}

const auto spec = testing::op<Int4Embedding>({
    .cases = {rows({1}, 1, 32, 32, false), rows({2, 9}, 37, 128, 64, false), rows({50}, 16, 64, 32, true, DType::bf16),
              rows({3, 5}, 100, 256, 128, true), rows({0}, 16, 64, 32, false),
              rows({37}, 33, 2304, 64, true, DType::f16), rows({2, 5}, 40, 64, 32, false, DType::f32, Input({7, 64})),
              rows({2, 5}, 40, 64, 32, true, DType::f32, Input({5, 64}).as(DType::bf16)),
              rows({2, 5}, 40, 64, 32, false, DType::f32, Input({3, 64}), Input::indices({2, 5}, 3))},
    .reference =
        [](std::span<Expected> out, std::span<const Values> in, const Int4Embedding::Args&) {
          const auto n = in[1].spec[0], k = 2 * in[1].spec[1], groups = in[2].spec[1];
          for (std::int64_t i = 0; i < in[0].size(); ++i) {
            const auto id = static_cast<std::int64_t>(in[0][i]), tile = id / 16 * 16, r = id - tile;
            for (std::int64_t d = 0; d < k; ++d) {
              double& v = out[0][i * k + d];
              v = std::numeric_limits<double>::quiet_NaN();
              if (id < 0 || id >= n) continue;
              const auto height = int4::tile_rows(tile, n);
              const double p =
                  in[4] ? in[4][(in[5] ? static_cast<std::int64_t>(in[5][i]) : i % in[0].spec[-1]) * k + d] : 0;
              const auto byte = static_cast<int>(in[1][tile * k / 2 + d / 8 * height * 4 + r * 4 + d % 4]);
              const auto at = tile * groups + d / (k / groups) * height + r;
              v = in[2][at] * ((d % 8 < 4 ? byte & 15 : byte >> 4) - 8) + (in[3] ? in[3][at] : 0) + p;
            }
          }
        },
    .bf16 = false,  // the output type is an argument, not that of an input
});

}  // namespace
}  // namespace hpcdl
