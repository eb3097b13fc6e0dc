#pragma once
// Where the first NaN or infinity of a program comes from.

#include <optional>
#include <string>
#include <vector>

#include "hpcdl/graph/instance.h"

namespace hpcdl::train {

/// x may lie on the device of s.
bool all_finite(const Stream& s, const View& x);

/// The first bad tensor of a step.
struct NonFinite {
  std::string what;         // in words: `record 12 (softmax, forward, layers.3.attn) wrote "softmax" F32 (2, 64)`
  bool input = false;       // it is what the program was given
  std::int64_t micro = -1;  // in which micro-batch; -1: in none
  std::vector<std::int64_t> rows = {};  // samples of that batch that are bad in it; empty: not known
};

/// Checks the inputs that the program has, then runs it again on them and checks after each record what it wrote.
/// `batch`: samples in it.
std::optional<NonFinite> first_non_finite(const Instance& exe, Stream& s, std::int64_t batch = 1);

}  // namespace hpcdl::train
