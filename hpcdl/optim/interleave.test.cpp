#include "hpcdl/optim/interleave.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace hpcdl {
namespace {

constexpr UpdateBytes kCpu{8, 6}, kDevice{8, 8};

/// The time of a whole number of rounds, group by group.
double seconds(int k, const UpdateRates& r) {
  double cpu = 0, down = 0, up = 0;
  const int groups = k == 0 ? 1 : k;
  for (int i = 0; i < groups; ++i) {
    const bool there = k > 0 && i % k == k - 1;
    cpu += there ? 0 : r.cpu;
    down += (there ? kDevice : kCpu).to_host * r.to_host, up += (there ? kDevice : kCpu).from_host * r.from_host;
  }
  return std::max({cpu, down, up}) / groups;
}

TEST(interleave, is_the_best_of_all) {
  for (const double cpu : {0.01, 0.1, 0.3, 1.0, 3.0, 10.0})
    for (const double link : {0.001, 0.01, 0.02, 0.1, 0.5}) {
      const UpdateRates rates{cpu, link, 1.3 * link};
      const double chosen = seconds(choose_interleave(rates, kCpu, kDevice), rates);
      for (int k = 0; k <= 64; ++k)
        EXPECT_LE(chosen, seconds(k, rates) * (1 + 1e-12)) << cpu << " " << link << " " << k;
    }
}

TEST(interleave, follows_what_is_slow) {
  EXPECT_EQ(choose_interleave({1, 1e-9, 1e-9}, kCpu, kDevice), 1) << "a fast link: all on the device";
  EXPECT_EQ(choose_interleave({1e-9, 1, 1}, kCpu, kDevice), 0) << "a fast CPU: nothing on the device";
  EXPECT_EQ(choose_interleave({1, 0.05, 0.05}, {4, 2}, {12, 12}), 2) << "the links carry half of the moments in time";
}

}  // namespace
}  // namespace hpcdl
