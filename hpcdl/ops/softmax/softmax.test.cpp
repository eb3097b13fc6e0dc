#include "hpcdl/ops/softmax/softmax.h"

#include <cmath>

#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

using testing::Ref;

const auto spec = testing::op<Softmax>({
    .cases =
        {
            {.in = {{1, 1}}},
            {.in = {{3, 7}}},
            {.in = {{4, 1023}}},
            {.in = {{64, 257}}, .args = {.scale = 0.125f}},
            {.in = {{2, 5, 16}}, .args = {.scale = 0.5f, .causal = true}},
            {.in = {{3, 17, 33}}, .args = {.scale = 1, .causal = true}},
            {.in = {{2, 50257}}},
            {.in = {{1, 262144}}, .gradient = false},
            {.in = {{0, 8}}},
        },
    .reference =
        [](std::span<Ref> out, std::span<const Ref> in, const Softmax::Args& a) {
          const Ref& x = in[0];
          const auto cols = x.shape[-1], rows = x.shape.size() / cols;  // shape[-1] > 0
          for (std::int64_t r = 0; r < rows; ++r) {
            const auto n = a.causal ? r % x.shape[-2] + cols - x.shape[-2] + 1 : cols;
            double top = -INFINITY, sum = 0;
            for (std::int64_t c = 0; c < n; ++c) top = std::max(top, a.scale * x[r * cols + c]);
            for (std::int64_t c = 0; c < n; ++c) sum += std::exp(a.scale * x[r * cols + c] - top);
            for (std::int64_t c = 0; c < cols; ++c) out[0][r * cols + c] = c < n ? std::exp(a.scale * x[r * cols + c] - top) / sum : 0;
          }
        },
    .reduction = [](std::span<const Spec> in, const Softmax::Args&) { return in[0][-1]; },
});

}  // namespace
}  // namespace hpcdl
