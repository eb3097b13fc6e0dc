#include "hpcdl/ops/bias_gelu/bias_gelu.spec.h"

#include <cmath>

#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

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
    .contracts = contract::bias_gelu_contracts(),
});

}  // namespace
}  // namespace hpcdl
