#include "hpcdl/ops/argmax/argmax.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "hpcdl/testing/decoding.h"

namespace hpcdl {
namespace {

std::vector<float> found(Stream& s, const std::vector<float>& values, std::int64_t rows, DType type) {
  const Spec spec{{rows, std::ssize(values) / rows}, type};
  OwnedTensor here(spec), x(spec, s.device()), ids(Spec{{rows}, DType::i32}, s.device());
  for (std::int64_t i = 0; i < spec.size(); ++i) set_element(here.tensor, i, values[static_cast<std::size_t>(i)]);
  copy(s, x.tensor, here.tensor);
  Argmax::find(s, ids.tensor, x.tensor);
  return testing::on_host(s, ids.tensor);
}

template <class F> void on_every_device(F&& f) {
  Pool pool(1);
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    Stream host(pool);
    f(host, type);
    if (cuda_devices() == 0) continue;
    Stream gpu(Device::cuda(0), pool);
    f(gpu, type);
  }
}

TEST(argmax, the_first_of_the_largest) {
  on_every_device([](Stream& s, DType type) {
    for (const std::int64_t cols : {1, 7, 1024, 8193, 32001}) {
      std::vector<float> x(static_cast<std::size_t>(3 * cols));
      std::vector<float> want;
      for (std::int64_t r = 0; r < 3; ++r) {
        float* row = x.data() + r * cols;
        for (std::int64_t i = 0; i < cols; ++i)  // many equal values
          row[i] = std::floor(static_cast<float>(Rng{1, 2}.normal(static_cast<std::uint64_t>(r * cols + i))) * 4) - 9;
        std::int64_t best = 0;
        for (std::int64_t i = 1; i < cols; ++i)
          if (row[i] > row[best]) best = i;
        want.push_back(static_cast<float>(best));
      }
      EXPECT_EQ(found(s, x, 3, type), want) << cols;
    }
    EXPECT_EQ(found(s, {-1, -0.0f, 0, -0.0f}, 1, type), std::vector<float>{1}) << "0 and -0 are equal";
  });
}

TEST(argmax, says_where_a_row_has_no_largest) {
  on_every_device([](Stream& s, DType type) {
    std::vector<float> x(3000, 1.0f);
    x[2500] = NAN;
    EXPECT_EQ(found(s, x, 1, type), std::vector<float>{-2501});
    x[1300] = INFINITY;
    EXPECT_EQ(found(s, x, 1, type), std::vector<float>{-1301});
    x[0] = -NAN;
    EXPECT_EQ(found(s, x, 1, type), std::vector<float>{-1});
    EXPECT_EQ(found(s, {-INFINITY, -INFINITY, 1, -INFINITY}, 2, type), (std::vector<float>{-1, 0}));
  });
}

TEST(argmax, refuses_what_does_not_fit) {
  EXPECT_THROW(Argmax::check(Spec{{2}, DType::i32}, Spec{{3, 4}, DType::f32}), Error);
  EXPECT_THROW(Argmax::check(Spec{{3}, DType::f32}, Spec{{3, 4}, DType::f32}), Error);
  EXPECT_THROW(Argmax::check(Spec{{3}, DType::i32}, Spec{{3, 4}, DType::i32}), Error);
}

}  // namespace
}  // namespace hpcdl
