#include "hpcdl/ops/scale/scale.spec.h"

#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

const auto spec = testing::op<Scale>({
    .cases =
        {
            {.in = {{1}}, .args = {.factor = 3}},
            {.in = {{3, 7}}, .args = {.factor = -0.5f}},
            {.in = {{5, 1023}}, .args = {.factor = 2, .cap = 5}},
            {.in = {{2, 3, 64}}, .args = {.cap = 30}},
            {.in = {{4, 9}}, .args = {.cap = 1}},
            {.in = {{0, 8}}},
        },
    .reference = [](std::span<testing::Expected> out, std::span<const testing::Values> in,
                    const Scale::Args& a) { contract::scale_reference(out, in, a); },
    .reduction = [](std::span<const Spec>, const Scale::Args&) { return std::int64_t{4}; },
});

}  // namespace
}  // namespace hpcdl
