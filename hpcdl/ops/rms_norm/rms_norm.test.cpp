#include "hpcdl/ops/rms_norm/rms_norm.spec.h"

#include <array>

#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

using testing::Expected;
using testing::Input;
using testing::Values;

const auto f32 = DType::f32;

const auto plain = testing::op<RmsNorm>({
    .cases =
        {
            {.in = {{1, 1}, {1}}},
            {.in = {{3, 7}, {7}}},
            {.in = {{2, 5, 16}, {16}}, .args = {.eps = 1e-6f}},
            {.in = {{37, 64}, Input{64}.as(f32)}},
            {.in = {{9, 133}, {133}}},
            {.in = {{2, 4099}, Input{4099}.as(f32)}},
            {.in = {{2100, 24}, {24}}, .gradient = false},
            {.in = {{5, 37}, {37}}, .args = {.weight_offset = 1}},
            {.in = {{6, 64}, Input{64}.as(f32)}, .args = {.eps = 1e-6f, .weight_offset = 1}},
            {.in = {{3, 4099}, {4099}}, .args = {.weight_offset = 1}, .gradient = false},
            {.in = {{0, 8}, {8}}},
        },
    .contracts = contract::rms_norm_contracts(),
    .condition = 2,  // x * rstd carries the error of the statistic
});

const auto with_residual = testing::op<AddRmsNorm>({
    .cases =
        {
            {.in = {{3, 7}, {3, 7}, {7}}},
            {.in = {{2, 5, 16}, {2, 5, 16}, Input{16}.as(f32)}},
            {.in = {{33, 257}, {33, 257}, {257}}},
            {.in = {{4, 33}, {4, 33}, {33}}, .args = {.weight_offset = 1}},
            {.in = {{0, 8}, {0, 8}, {8}}},
        },
    .reference =
        [](std::span<Expected> out, std::span<const Values> in, const AddRmsNorm::Args& a) {
          Values h = in[0];
          for (std::int64_t i = 0; i < h.size(); ++i) out[0][i] = h[i] += in[1][i];
          contract::rms_norm_reference(out.subspan(1), std::array{h, in[2]}, a);
        },
    .reduction = [](std::span<const Spec> in, const AddRmsNorm::Args&) { return in[0].size(); },
    .condition = 2,
});

}  // namespace
}  // namespace hpcdl
