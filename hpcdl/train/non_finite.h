#pragma once
// Where the first NaN or infinity of a program comes from.

#include <optional>
#include <span>
#include <string>

#include "hpcdl/graph/executable.h"

namespace hpcdl::train {

/// x may lie on the device of s.
bool all_finite(const Stream& s, const View& x);

/// Runs the program again on the inputs it has, looking behind each record at what it wrote. Returns the first bad
/// tensor in words: `record 12 (softmax, forward, layers.3.attn) wrote "softmax" F32 (2, 64)`.
std::optional<std::string> first_non_finite(const Executable& exe, Stream& s);

}  // namespace hpcdl::train
