#include "hpcdl/state/moment_blocks.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/tensor.h"

namespace hpcdl {
namespace {

constexpr std::int64_t kBlock = 256;

/// The blocks of a part, found by a loop over its elements, must be those that part_of_blocks() names.
void expect_blocks_of(const Shape& whole, const Part& part) {
  const Spec elements{part.all() ? whole : part.local, DType::i32};
  const OwnedTensor numbers({whole, DType::i32}), mine(elements);
  std::iota(numbers.tensor.ptr<std::int32_t>(), numbers.tensor.ptr<std::int32_t>() + whole.size(), 0);
  copy_common(mine.tensor, part, numbers.tensor, {});
  const auto blocks = part_of_blocks(part, "w");
  const Spec scales{blocks.all() ? shape_of_blocks(whole) : blocks.local, DType::i32};
  ASSERT_EQ(scales.size(), (elements.size() + kBlock - 1) / kBlock);
  ASSERT_EQ(whole_spec(scales, blocks, "w").shape, shape_of_blocks(whole));
  const OwnedTensor all({shape_of_blocks(whole), DType::i32}), own(scales);
  std::iota(all.tensor.ptr<std::int32_t>(), all.tensor.ptr<std::int32_t>() + all.tensor.size(), 0);
  copy_common(own.tensor, blocks, all.tensor, {});
  for (std::int64_t i = 0; i < elements.size(); ++i)
    ASSERT_EQ(mine.tensor.ptr<std::int32_t>()[i] / kBlock, own.tensor.ptr<std::int32_t>()[i / kBlock]) << i;
}

std::string refusal(const Part& part) {
  try {
    part_of_blocks(part, "layers.0.o.weight");
  } catch (const Error& e) {
    return e.what();
  }
  return "none";
}

TEST(moment_blocks, are_those_of_the_whole_tensor_whatever_a_rank_has) {
  for (const Shape& whole : {Shape{8, 512}, Shape{16, 192}, Shape{64, 64}, Shape{5000}, Shape{4, 2, 768}}) {
    expect_blocks_of(whole, {});
    for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 1024}, {256, 2304}, {1024, whole.size()}})
      expect_blocks_of(whole, Part::flat(whole, {begin, end}));
    expect_blocks_of(whole, Part::flat(whole, {0, 0}));
  }
  expect_blocks_of({8, 512}, Part::along({8, 512}, 1, std::array{Interval{256, 512}}));
  expect_blocks_of({4, 1536}, Part::along({4, 1536}, 1, std::array{Interval{0, 256}, Interval{768, 1280}}));
  expect_blocks_of({48, 64}, Part::along({48, 64}, 0, std::array{Interval{4, 8}, Interval{16, 32}}));
  expect_blocks_of({9, 100}, Part::along({9, 100}, 0, std::array{Interval{0, 9}}));
  const auto columns = Part::along({8, 1024}, 1, std::array{Interval{512, 1024}});
  expect_blocks_of({8, 1024}, Part::flat({8, 1024}, {512, 2048}, columns));
  const auto rows = Part::along({64, 192}, 0, std::array{Interval{16, 48}});
  expect_blocks_of({64, 192}, Part::flat({64, 192}, {256, 4096}, rows));
  const Shape none{0, 512};
  expect_blocks_of({8, 512}, Part{{8, 512}, none, contiguous_strides(none), {}});
}

TEST(moment_blocks, that_ranks_would_share_are_refused) {
  const auto columns = refusal(Part::along({8, 256}, 1, std::array{Interval{0, 128}}));
  for (const char* part : {"train.moments = \"8bit\": \"layers.0.o.weight\" (8, 256)", "dim 1 [0, 128)",
                           "multiples of 256", "parallel.tp", "train.moments = \"f32\""})
    EXPECT_NE(columns.find(part), std::string::npos) << part << "\n" << columns;
  EXPECT_NE(refusal(Part::along({8, 64}, 1, std::array{Interval{0, 32}})), "none");
  EXPECT_NE(refusal(Part::along({9, 100}, 0, std::array{Interval{0, 3}})), "none");
  EXPECT_NE(refusal(Part::flat({64, 64}, {64, 512})), "none");
  EXPECT_NE(refusal(Part::flat({5000}, {0, 300})), "none");
}

TEST(moment_blocks, small_tensors_keep_f32) {
  const std::string_view names[] = {"m", "v"};
  nn::Param small, large;
  small.name = "small", small.spec = {{4095}, DType::f32};
  large.name = "large", large.spec = {{16, 256}, DType::f32};
  std::vector<NewMoment> list;
  for (auto* p : {&small, &large}) add_new_moments(list, *p, {p->spec.shape, {}}, names, true);
  ASSERT_EQ(list.size(), 6u);
  EXPECT_EQ(list[1].ending, ".v");
  EXPECT_EQ(list[1].spec, (Spec{{4095}, DType::f32}));
  EXPECT_EQ(list[2].ending, ".m");
  EXPECT_EQ(list[2].spec, (Spec{{16, 256}, DType::i8}));
  EXPECT_EQ(list[3].ending, ".m.scale");
  EXPECT_EQ(list[3].spec, (Spec{{16, 1}, DType::f32}));
  EXPECT_EQ(list[4].spec.dtype, DType::u8);
  EXPECT_EQ(list[5].ending, ".v.scale");
}

}  // namespace
}  // namespace hpcdl
