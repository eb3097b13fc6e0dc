#include "hpcdl/ops/bias_gelu/bias_gelu.h"

#include <cmath>

#include "hpcdl/testing/activations.h"
#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

using testing::Ref;
using Form = Gelu::Form;

const auto spec = testing::op<BiasGelu>({
    .cases =
        {
            {.in = {{1}, {1}}},
            {.in = {{3, 7}, {7}}},
            {.in = {{5, 1023}, {1023}}},
            {.in = {{2, 30, 70}, {70}}, .args = {Form::erf}},
            {.in = {{100, 600}, {600}}},
            {.in = {{4, 9}, testing::Input({9}).fixed()}},
            {.in = {testing::Input({4, 9}).fixed(), {9}}},
            {.in = {{0, 8}, {8}}},
        },
    .reference =
        [](std::span<Ref> out, std::span<const Ref> in, const Gelu::Args& a) {
          const auto cols = in[1].size();
          for (std::int64_t i = 0; i < in[0].size(); ++i) {
            const double x = in[0][i] + in[1][i % cols];
            out[0][i] = a.form == Form::tanh ? testing::gelu_tanh(x) : testing::gelu_erf(x);
          }
        },
    .reduction = [](std::span<const Spec> in, const Gelu::Args&) { return in[0].size() / in[1].size(); },
});

}  // namespace
}  // namespace hpcdl
