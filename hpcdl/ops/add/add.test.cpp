#include "hpcdl/ops/add/add.spec.h"

#include <algorithm>
#include <functional>

#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

const auto spec = testing::op<Add>({
    .cases = {{.in = {{1}, {1}}},
              {.in = {{3, 7}, {3, 7}}},
              {.in = {{5, 1023}, {5, 1023}}},
              {.in = {{2, 3, 64}, {2, 3, 64}}},
              {.in = {{1, 20000}, {1, 20000}}},
              {.in = {{4, 9}, testing::Input({4, 9}).fixed()}},
              {.in = {{0, 8}, {0, 8}}}},
    .contracts = contract::add_contracts(),
});

}  // namespace
}  // namespace hpcdl
