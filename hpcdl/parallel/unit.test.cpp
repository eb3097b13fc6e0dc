#include "hpcdl/parallel/unit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/ops/many_tensors.h"
#include "hpcdl/rng.h"

namespace hpcdl::parallel {
namespace {

std::vector<int> sizes_of(const UnitPlan& plan) {
  std::vector<int> n;
  for (const auto& b : plan.units) n.push_back(b.end - b.begin);
  return n;
}

/// Every tensor within its unit and apart from the others, units without gaps. All in elements.
void expect_whole(const UnitPlan& plan, std::span<const std::int64_t> sizes, std::int64_t tensor_align = 64,
                  std::int64_t unit_align = 1024) {
  ASSERT_EQ(plan.offset.size(), sizes.size());
  std::int64_t at = 0;
  int tensor = 0;
  for (const auto& b : plan.units) {
    EXPECT_EQ(b.offset, at);
    EXPECT_EQ(b.offset % unit_align, 0);
    EXPECT_EQ(b.begin, tensor);
    EXPECT_LT(b.begin, b.end);
    std::int64_t within = b.offset;
    for (; tensor < b.end; ++tensor) {
      const auto i = static_cast<std::size_t>(tensor);
      EXPECT_EQ(plan.offset[i] % tensor_align, 0);
      EXPECT_GE(plan.offset[i], within);
      within = plan.offset[i] + sizes[i];
    }
    at = b.offset + b.elements;
    EXPECT_LE(within, at);
  }
  EXPECT_EQ(tensor, std::ssize(sizes));
  EXPECT_EQ(at, plan.elements);
}

TEST(buckets, they_grow_from_the_first_to_the_cap_and_taper_towards_the_end) {
  const std::vector<std::int64_t> elements(18, 1 << 18);
  const auto plan = plan_buckets(elements, {.cap = 4 << 20, .first = 1 << 20});
  EXPECT_EQ(sizes_of(plan), (std::vector{1, 2, 4, 4, 3, 2, 1, 1}));
  expect_whole(plan, elements);
}

TEST(buckets, a_tensor_beyond_the_cap_has_its_own) {
  const std::vector<std::int64_t> elements{250, 9 << 18, 250, 250};
  const auto plan = plan_buckets(elements, {.cap = 4 << 20, .first = 1 << 20});
  EXPECT_EQ(sizes_of(plan), (std::vector{1, 1, 2}));
  expect_whole(plan, elements);
}

TEST(buckets, a_cap_of_zero_gives_every_tensor_its_own) {
  const std::vector<std::int64_t> elements{1, 0, 25, 1 << 18};
  const auto plan = plan_buckets(elements, {.cap = 0});
  EXPECT_EQ(sizes_of(plan), (std::vector{1, 1, 1, 1}));
  expect_whole(plan, elements);
}

TEST(buckets, nothing_gives_nothing) {
  const auto plan = plan_buckets({}, {});
  EXPECT_TRUE(plan.units.empty());
  EXPECT_EQ(plan.elements, 0);
  EXPECT_THROW(plan_buckets({}, {.cap = -1}), Error);
}

TEST(buckets, any_sizes_are_laid_out_whole_and_within_the_cap) {
  const Rng rng{5, 1};
  for (std::uint64_t n = 0; n < 300; ++n) {
    std::vector<std::int64_t> elements;
    for (std::uint64_t i = 0; i < 1 + n % 40; ++i)
      elements.push_back(static_cast<std::int64_t>(rng.below(1000 * n + i, std::uint64_t{1} << (1 + n % 21))));
    const BucketOptions o{.cap = static_cast<std::int64_t>(rng.below(n, 1 << 22)),
                          .first = static_cast<std::int64_t>(rng.below(n + 7, 1 << 18))};
    const auto plan = plan_buckets(elements, o);
    expect_whole(plan, elements);
    for (std::size_t b = 0; b < plan.units.size(); ++b)
      if (plan.units[b].end - plan.units[b].begin > 1) {
        EXPECT_LE(plan.units[b].elements * 4, (b == 0 ? std::min(o.first, o.cap) : o.cap) + 4096);
      }
  }
}

/// Every element is updated by one rank, pieces begin with blocks of the gradient norm, and no rank has more than its
/// share: for worlds that divide nothing evenly, and tensors that are smaller than the world.
TEST(units, every_element_belongs_to_one_rank) {
  const Rng rng{7, 2};
  for (std::uint64_t n = 0; n < 200; ++n) {
    const int ranks = 1 + static_cast<int>(rng.below(3 * n, 9));
    std::vector<UnitTensor> tensors;
    std::vector<std::int64_t> sizes;
    for (std::uint64_t i = 0; i < 1 + n % 20; ++i) {
      sizes.push_back(static_cast<std::int64_t>(rng.below(1000 * n + i, std::uint64_t{1} << (1 + n % 18))));
      tensors.push_back({"unit " + std::to_string(i / 3), sizes.back()});
    }
    const auto plan = plan_units(tensors, ranks);
    expect_whole(plan, sizes, kTensorBlock, ranks * kTensorBlock);
    EXPECT_EQ(plan.units.size(), (sizes.size() + 2) / 3);
    std::vector<std::int64_t> last(static_cast<std::size_t>(ranks));  // where the last piece ends in a block of shares
    for (std::size_t t = 0; t < sizes.size(); ++t) {
      std::int64_t at = 0;
      for (int r = 0; r < ranks; ++r) {
        const auto piece = plan.piece(t, sizes[t], r);
        if (piece.count() == 0) continue;
        EXPECT_EQ(piece.begin, at) << "the ranks have consecutive pieces";
        EXPECT_EQ(piece.begin % kTensorBlock, 0);
        at = piece.end;
        const auto share = plan.piece_offset(t, sizes[t], r);
        auto& end = last[static_cast<std::size_t>(r)];
        EXPECT_GE(share, end);
        end = share + piece.count();
        EXPECT_LE(end, plan.share_elements());
        const auto& unit = plan.unit_of(t);
        EXPECT_EQ(share - unit.offset / ranks, plan.offset[t] + piece.begin - plan.share(unit, r).begin);
      }
      EXPECT_EQ(at, sizes[t]);
    }
  }
  EXPECT_THROW(plan_units({}, 0), Error);
}

TEST(units, are_blocks_of_the_model_or_modules) {
  EXPECT_EQ(unit_name("transformer.h.3.attn.c_attn.weight"), "transformer.h.3");
  EXPECT_EQ(unit_name("model.layers.11.mlp.up_proj.weight"), "model.layers.11");
  EXPECT_EQ(unit_name("layer1.0.conv1.weight"), "layer1.0");
  EXPECT_EQ(unit_name("conv1.weight"), "conv1");
  EXPECT_EQ(unit_name("lm_head.weight"), "lm_head");
  EXPECT_EQ(unit_name("scale"), "scale");
}

}  // namespace
}  // namespace hpcdl::parallel
