// Parts of matrices of 4 bits against the same rows and columns of the whole ones.

#include "hpcdl/quant/int4_part.h"

#include <gtest/gtest.h>

#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/rng.h"

namespace hpcdl::quant {
namespace {

std::vector<float> values_of(Pool& pool, const int4::Weight& w) {
  std::vector<float> values(static_cast<std::size_t>(w.n() * w.k()));
  dequantize_int4(pool, Tensor(values.data(), {{w.n(), w.k()}, DType::f32}), w);
  return values;
}

Int4Matrix random_matrix(Pool& pool, std::int64_t n, std::int64_t k, const nn::CodecOptions& options) {
  std::vector<float> values(static_cast<std::size_t>(n * k));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(Rng{5, 0}.normal(i));
  return quantize_int4(pool, View(values.data(), {{n, k}, DType::f32}), options);
}

TEST(Int4Part, has_the_values_of_the_whole) {
  Pool pool(1);
  struct Case {
    std::int64_t n, k, group;
    bool symmetric;
    nn::MatrixPart part;
  };
  const Case cases[] = {
      {64, 128, 32, true, {{{0, 32}}, {0, 128}}},   {64, 128, 32, false, {{{16, 64}}, {64, 128}}},
      {67, 256, 64, true, {{{33, 67}}, {0, 256}}},  {67, 256, 128, false, {{{0, 5}, {20, 41}, {66, 67}}, {128, 256}}},
      {1, 64, 32, false, {{{0, 1}}, {32, 64}}},     {40, 96, 32, true, {{{7, 8}}, {32, 64}}},
      {33, 384, 128, true, {{{0, 33}}, {256, 384}}}};
  for (const auto& c : cases) {
    const auto whole = random_matrix(pool, c.n, c.k, {.group = c.group, .symmetric = c.symmetric});
    const auto part = take_int4(whole.weight(), c.part);
    const auto all = values_of(pool, whole.weight()), got = values_of(pool, part.weight());
    std::vector<float> want;
    for (const auto& rows : c.part.outputs)
      for (auto r = rows.begin; r < rows.end; ++r)
        for (auto i = c.part.inputs.begin; i < c.part.inputs.end; ++i)
          want.push_back(all[static_cast<std::size_t>(r * c.k + i)]);
    EXPECT_EQ(got, want) << c.n << " x " << c.k << " in groups of " << c.group;
    EXPECT_EQ(static_cast<bool>(part.offset.tensor), !c.symmetric);
  }
}

TEST(Int4Part, inputs_are_whole_groups) {
  Pool pool(1);
  const auto whole = random_matrix(pool, 32, 256, {.group = 64});
  for (const Interval inputs : {Interval{32, 96}, Interval{64, 96}, Interval{64, 64}})
    EXPECT_THROW(take_int4(whole.weight(), {{{0, 32}}, inputs}, "down"), Error) << inputs.begin << " to " << inputs.end;
}

}  // namespace
}  // namespace hpcdl::quant
