#include "hpcdl/state/file_part.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "hpcdl/tensor.h"

namespace hpcdl {
namespace {

/// Every range of memory, put into a file, against a loop over the dims.
void expect_order(const nn::Param& p) {
  const Shape& c = p.channels_last;
  const auto n = c.size();
  const OwnedTensor memory({{n}, DType::f32});
  std::iota(memory.tensor.ptr<float>(), memory.tensor.ptr<float>() + n, 0.0f);
  for (std::int64_t begin = 0; begin <= n; ++begin)
    for (std::int64_t end = begin; end <= n; ++end) {
      const Interval range{begin, end};
      const auto part = file_part(p, range);
      const Spec local{{range.count()}, DType::f32};
      ASSERT_EQ(whole_spec(local, part, "x").shape, p.file_shape());
      const OwnedTensor file({p.file_shape(), DType::f32});
      std::fill(file.tensor.ptr<float>(), file.tensor.ptr<float>() + n, -1.0f);
      copy_common(file.tensor, {}, View(memory.tensor.ptr<float>() + begin, local), part);
      const float* at = file.tensor.ptr<float>();
      for (std::int64_t i = 0; i < c[0]; ++i)
        for (std::int64_t ch = 0; ch < c[3]; ++ch)
          for (std::int64_t y = 0; y < c[1]; ++y)
            for (std::int64_t x = 0; x < c[2]; ++x) {
              const auto from = ((i * c[1] + y) * c[2] + x) * c[3] + ch;
              ASSERT_EQ(*at++, from >= begin && from < end ? static_cast<float>(from) : -1.0f) << begin << " " << end;
            }
    }
}

TEST(file_part, images_have_channels_first_in_files) {
  nn::Param conv;
  conv.spec = {{2, 3, 2, 3}, DType::f32}, conv.channels_last = conv.spec.shape;
  expect_order(conv);
  EXPECT_EQ(conv.file_shape(), (Shape{2, 3, 3, 2}));
  nn::Param joined;  // a linear layer after an image
  joined.spec = {{2, 18}, DType::f32}, joined.channels_last = {2, 3, 2, 3};
  expect_order(joined);
}

TEST(file_part, other_tensors_are_flat_ranges) {
  nn::Param p;
  p.spec = {{4, 6}, DType::f32};
  EXPECT_EQ(file_part(p, {3, 20}), Part::flat({4, 6}, {3, 20}));
}

}  // namespace
}  // namespace hpcdl
