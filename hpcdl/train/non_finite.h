#pragma once
// Where the first NaN or infinity of a program comes from.

#include <optional>
#include <string>
#include <vector>

#include "hpcdl/instance.h"

namespace hpcdl::train {

/// x may lie on the device of s.
bool all_finite(const Stream& s, const View& x);

/// The first bad tensor of a step.
struct NonFinite {
  std::string what;         // in words: `record 12 (softmax, forward, layers.3.attn) wrote "softmax" F32 (2, 64)`
  bool input = false;       // it is an input of the program
  std::int64_t micro = -1;  // its micro-batch; -1: none
  std::vector<std::int64_t> rows = {};  // samples of that batch with bad values; empty: not known
};

/// Checks the inputs of the program, then runs it again on them and checks the outputs of each record.
/// `batch`: samples in it. If records exchange with other ranks, it runs all of them in any case, as these ranks do.
std::optional<NonFinite> first_non_finite(const Instance& exe, Stream& s, std::int64_t batch = 1);

}  // namespace hpcdl::train
