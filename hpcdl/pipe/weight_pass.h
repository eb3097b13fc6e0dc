#pragma once

#include <vector>

#include "hpcdl/program.h"

namespace hpcdl::pipe {

/// Whether a record of backward writes nothing but gradients of parameters, so that no other record of the pass waits for
/// it. Of a pass as it was recorded, whose only state is outside of it.
bool only_of_weights(const Program& pass, const Record& record);

/// By record: whether it is only_of_weights(), as are all records that write the same gradients, so that these may run
/// later without changing their order.
std::vector<bool> of_weights_apart(const Program& pass);

/// An edit after which the records that only_of_weights() may run at any time after the rest of the pass: what they read
/// and a later record overwrites, such as the gradient of a residual stream, is copied before them.
/// strip(weight_pass(p)) == p.
Program weight_pass(Program pass);

}  // namespace hpcdl::pipe
