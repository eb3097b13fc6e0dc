#include "hpcdl/ops/rms_norm/rms_norm.h"

#include <cmath>

#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

using testing::Input;
using testing::Ref;

void reference_rows(Ref& y, Ref& rstd, const Ref& h, const Ref& weight, double eps) {
  const auto n = weight.size();
  for (std::int64_t r = 0; r < h.size() / n; ++r) {
    double squares = 0;
    for (std::int64_t c = 0; c < n; ++c) squares += h[r * n + c] * h[r * n + c];
    rstd[r] = 1 / std::sqrt(squares / static_cast<double>(n) + eps);
    for (std::int64_t c = 0; c < n; ++c) y[r * n + c] = h[r * n + c] * rstd[r] * weight[c];
  }
}

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
            {.in = {{0, 8}, {8}}},
        },
    .reference =
        [](std::span<Ref> out, std::span<const Ref> in, const RmsNorm::Args& a) {
          reference_rows(out[0], out[1], in[0], in[1], static_cast<double>(a.eps));
        },
    .reduction = [](std::span<const Spec> in, const RmsNorm::Args&) { return in[0].size(); },
    .condition = 2,  // x * rstd carries the error of the statistic
});

const auto with_residual = testing::op<AddRmsNorm>({
    .cases =
        {
            {.in = {{3, 7}, {3, 7}, {7}}},
            {.in = {{2, 5, 16}, {2, 5, 16}, Input{16}.as(f32)}},
            {.in = {{33, 257}, {33, 257}, {257}}},
            {.in = {{0, 8}, {0, 8}, {8}}},
        },
    .reference =
        [](std::span<Ref> out, std::span<const Ref> in, const AddRmsNorm::Args& a) {
          for (std::int64_t i = 0; i < in[0].size(); ++i) out[0][i] = in[0][i] + in[1][i];
          reference_rows(out[1], out[2], out[0], in[2], static_cast<double>(a.eps));
        },
    .reduction = [](std::span<const Spec> in, const AddRmsNorm::Args&) { return in[0].size(); },
    .condition = 2,
});

}  // namespace
}  // namespace hpcdl
