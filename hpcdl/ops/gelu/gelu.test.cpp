#include "hpcdl/ops/gelu/gelu.h"

#include <cmath>

#include "hpcdl/testing/activations.h"
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
            out[0][i] = a.form == Form::tanh ? testing::gelu_tanh(x) : testing::gelu_erf(x);
          }
        },
});

}  // namespace
}  // namespace hpcdl
