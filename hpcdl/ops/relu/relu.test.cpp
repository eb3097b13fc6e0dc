#include "hpcdl/ops/relu/relu.h"

#include <algorithm>

#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

using testing::Ref;

const auto spec = testing::op<Relu>({
    .cases = {{.in = {{1}}},
              {.in = {{3, 7}}},
              {.in = {{5, 1023}}},
              {.in = {{2, 3, 64}}},
              {.in = {{1, 20000}}},
              {.in = {{0, 8}}}},
    .reference =
        [](std::span<Ref> out, std::span<const Ref> in, const Relu::Args&) {
          std::transform(in[0].data.begin(), in[0].data.end(), out[0].data.begin(),
                         [](double x) { return std::max(x, 0.0); });
        },
});

}  // namespace
}  // namespace hpcdl
