#include "hpcdl/ops/add/add.h"

#include <algorithm>
#include <functional>

#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

using testing::Ref;

const auto spec = testing::op<Add>({
    .cases = {{.in = {{1}, {1}}},
              {.in = {{3, 7}, {3, 7}}},
              {.in = {{5, 1023}, {5, 1023}}},
              {.in = {{2, 3, 64}, {2, 3, 64}}},
              {.in = {{1, 20000}, {1, 20000}}},
              {.in = {{4, 9}, testing::Input({4, 9}).fixed()}},
              {.in = {{0, 8}, {0, 8}}}},
    .reference =
        [](std::span<Ref> out, std::span<const Ref> in, const Add::Args&) {
          std::transform(in[0].data.begin(), in[0].data.end(), in[1].data.begin(), out[0].data.begin(), std::plus<>());
        },
});

}  // namespace
}  // namespace hpcdl
