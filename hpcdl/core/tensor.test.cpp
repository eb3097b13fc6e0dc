#include "hpcdl/tensor.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "hpcdl/rng.h"

namespace hpcdl {
namespace {

/// The beginning of every row of a view, by definition.
std::vector<std::int64_t> row_places(const Shape& shape, const Shape& strides) {
  std::vector<std::int64_t> places{0};
  for (int i = 0; i + 1 < shape.rank(); ++i) {
    std::vector<std::int64_t> longer;
    for (const std::int64_t at : places)
      for (std::int64_t k = 0; k < shape[i]; ++k) longer.push_back(at + k * strides[i]);
    places = longer;
  }
  return places;
}

/// Equally spaced rows are recognised for any strides of dims of size one, and row_stride() is their distance; no other
/// view is recognised.
TEST(tensor, uniform_rows_are_what_they_are_called) {
  const Rng rng{3};
  std::uint64_t drawn = 0;
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(rng.bits(drawn++) % static_cast<std::uint64_t>(n));
  };
  int uniform = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    const std::int64_t rank = 1 + below(6);
    Shape shape, strides;
    for (std::int64_t i = 0; i < rank; ++i) shape.push_back(below(2) == 0 ? 1 : 1 + below(4)), strides.push_back(0);
    // Dense from the inside, with occasional gaps, and arbitrary strides in dims of size one.
    std::int64_t next = 1;
    const bool tidy = below(2) == 0;
    for (int i = shape.rank() - 1; i >= 0; --i) {
      strides[i] = next;
      next = next * shape[i] + (i + 1 == shape.rank() || (!tidy && below(3) == 0) ? below(3) : 0);
      if (shape[i] == 1 && below(2) == 0) strides[i] = below(100) - 50;
    }
    const View v(nullptr, {shape, DType::f32}, clean_strides(shape, strides), {});
    const auto places = row_places(shape, strides);
    bool even = shape[-1] == 1 || strides[-1] == 1;
    for (std::size_t r = 2; r < places.size(); ++r) even = even && places[r] - places[r - 1] == places[1];
    ASSERT_EQ(v.rows_are_uniform(), even) << trial;
    if (!even) continue;
    ++uniform;
    for (std::size_t r = 0; r < places.size(); ++r)
      ASSERT_EQ(places[r], static_cast<std::int64_t>(r) * v.row_stride()) << trial;
  }
  EXPECT_GT(uniform, 2000);
  EXPECT_LT(uniform, 19900);
}

TEST(tensor, dims_of_one_take_the_stride_of_their_neighbours) {
  EXPECT_EQ(clean_strides({4, 1, 3}, {30, 7, 1}), (Shape{30, 30, 1}));           // x[:, :1]
  EXPECT_EQ(clean_strides({4, 1, 2, 3}, {60, 99, 3, 1}), (Shape{60, 6, 3, 1}));  // x[:, :1] of four dims
  EXPECT_EQ(clean_strides({1, 5, 1}, {0, 8, 0}), (Shape{40, 8, 1}));
  EXPECT_EQ(clean_strides({}, {}), Shape{});
}

}  // namespace
}  // namespace hpcdl
