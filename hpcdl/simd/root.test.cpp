#include "hpcdl/simd/root.h"

#include <gtest/gtest.h>

#include <cmath>

namespace hpcdl::simd {
namespace {

/// Of all exponents and many fractions; the guess of the other instruction sets is the same.
TEST(root, is_as_near_as_it_says) {
  using V = Vec<Scalar>;
  double worst = 0;
  for (int exponent = -125; exponent <= 125; ++exponent)
    for (int i = 0; i < 4096; ++i) {
      const float x = std::ldexp(1.0f + static_cast<float>(i) / 4096, exponent);
      const double want = std::sqrt(static_cast<double>(x));
      worst = std::fmax(worst, std::fabs(static_cast<double>(rough_root(V(x)).v) / want - 1));
    }
  EXPECT_LT(worst, 6e-6);
  EXPECT_GT(worst, 1e-6) << "nothing is gained by a third step";
  EXPECT_EQ(rough_root(V(0.0f)).v, 0);
}

}  // namespace
}  // namespace hpcdl::simd
