#include "hpcdl/ops/gelu/gelu.h"

#include <cmath>

#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

using testing::Ref;
using Form = Gelu::Form;

const auto spec = testing::op<Gelu>({
    .cases =
        {
            {.in = {{1}}},
            {.in = {{3, 7}}},
            {.in = {{5, 1023}}},
            {.in = {{2, 3, 64}}, .args = {Form::erf}},
            {.in = {{3, 7}}, .args = {Form::erf}},
            {.in = {{1, 20000}}},
            {.in = {{0, 8}}},
        },
    .reference =
        [](std::span<Ref> out, std::span<const Ref> in, const Gelu::Args& a) {
          for (std::int64_t i = 0; i < in[0].size(); ++i) {
            const double x = in[0][i];
            const double phi = a.form == Form::tanh
                                   ? 0.5 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)))
                                   : 0.5 * (1 + std::erf(x / std::sqrt(2.0)));
            out[0][i] = x * phi;
          }
        },
});

}  // namespace
}  // namespace hpcdl
