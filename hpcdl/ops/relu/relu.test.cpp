#include "hpcdl/ops/relu/relu.spec.h"

#include <algorithm>

#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

const auto spec = testing::op<Relu>({
    .cases = {{.in = {{1}}},
              {.in = {{3, 7}}},
              {.in = {{5, 1023}}},
              {.in = {{2, 3, 64}}},
              {.in = {{1, 20000}}},
              {.in = {{0, 8}}}},
    .contracts = contract::relu_contracts(),
});

}  // namespace
}  // namespace hpcdl
