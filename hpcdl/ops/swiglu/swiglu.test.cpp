#include "hpcdl/ops/swiglu/swiglu.h"

#include <cmath>

#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

using testing::Ref;

const auto spec = testing::op<Swiglu>({
    .cases = {{.in = {{1}, {1}}},
              {.in = {{3, 7}, {3, 7}}},
              {.in = {{5, 1023}, {5, 1023}}},
              {.in = {{2, 3, 64}, {2, 3, 64}}},
              {.in = {{4, 9}, testing::Input({4, 9}).fixed()}},
              {.in = {{0, 8}, {0, 8}}}},
    .reference =
        [](std::span<Ref> out, std::span<const Ref> in, const Swiglu::Args&) {
          for (std::int64_t i = 0; i < in[0].size(); ++i) out[0][i] = in[0][i] / (1 + std::exp(-in[0][i])) * in[1][i];
        },
    // Products of two inputs: an error of one is scaled by the other, which reaches 40 among the outliers.
    .condition = 40,
});

}  // namespace
}  // namespace hpcdl
