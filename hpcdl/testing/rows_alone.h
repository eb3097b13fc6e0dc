#pragma once
// Whether the rows of an op's results have the bits that they have alone (Numerics::row_invariant).

#include "hpcdl/ops/contract.h"

namespace hpcdl::testing {

/// Registers, for every instruction set of this CPU that makes a difference to the op and every type that it takes, a
/// test which runs the op on 1 to 300 rows, and on each of them alone, and compares bits. `c.rows` says which dim counts
/// rows; the test fails if it says nothing. Of results that do not have a row for each of them, such as the gradient of
/// a weight, nothing is expected.
void register_row_tests(const contract::Contract& c, bool half_types);

}  // namespace hpcdl::testing
