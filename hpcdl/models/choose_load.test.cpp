#include "hpcdl/models/choose_load.h"

#include <gtest/gtest.h>

#include "hpcdl/core/error.h"
#include "hpcdl/models/language_model.h"

namespace hpcdl::models {
namespace {

using io::LoadMode;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

LoadFacts facts(std::int64_t weights, std::int64_t cached, std::int64_t available, LoadFacts::Rates rates = {}) {
  return {.weights = weights, .cached = cached, .available = available, .measure = [rates] { return rates; }};
}

TEST(choose_load, what_does_not_fit_streams) {
  const auto c = choose_load({LoadMode::automatic}, facts(6 * kGiB, 6 * kGiB, 5 * kGiB));
  EXPECT_EQ(c.mode, LoadMode::direct);
  EXPECT_EQ(c.ram, 4 * kGiB);
  const auto limited = choose_load({LoadMode::automatic, 2 * kGiB}, facts(6 * kGiB, 0, 50 * kGiB));
  EXPECT_EQ(limited.mode, LoadMode::direct);
  EXPECT_EQ(limited.ram, 2 * kGiB);
}

TEST(choose_load, what_fits_is_mapped_if_it_is_cached_or_small) {
  EXPECT_EQ(choose_load({LoadMode::automatic}, facts(6 * kGiB, 6 * kGiB, 50 * kGiB)).mode, LoadMode::mapped);
  EXPECT_EQ(choose_load({LoadMode::automatic, 7 * kGiB}, facts(6 * kGiB, 6 * kGiB, 50 * kGiB)).mode, LoadMode::mapped);
  EXPECT_EQ(choose_load({LoadMode::automatic}, facts(kGiB / 2, 0, 50 * kGiB)).mode, LoadMode::mapped);
}

TEST(choose_load, cold_files_are_read_in_the_faster_way) {
  const auto chosen = [](double direct, double mapped) {
    return choose_load({LoadMode::automatic}, facts(6 * kGiB, 0, 50 * kGiB, {direct, mapped})).mode;
  };
  EXPECT_EQ(chosen(6e9, 2e9), LoadMode::resident);
  EXPECT_EQ(chosen(2.2e9, 2e9), LoadMode::mapped);
  EXPECT_EQ(chosen(0, 2e9), LoadMode::mapped);
}

TEST(choose_load, does_what_it_is_told) {
  const auto f = facts(6 * kGiB, 6 * kGiB, 50 * kGiB);
  EXPECT_EQ(choose_load({LoadMode::mapped}, f).mode, LoadMode::mapped);
  EXPECT_EQ(choose_load({LoadMode::resident}, f).mode, LoadMode::resident);
  EXPECT_EQ(choose_load({LoadMode::direct, 2 * kGiB}, f).mode, LoadMode::direct);
  EXPECT_THROW(choose_load({LoadMode::mapped, 2 * kGiB}, f), UsageError);
  EXPECT_THROW(choose_load({LoadMode::resident, 2 * kGiB}, f), Error);
  EXPECT_THROW(choose_load({LoadMode::resident}, facts(6 * kGiB, 0, 6 * kGiB)), Error);
}

TEST(choose_load, a_gpu_copies_what_is_mapped) {
  const Device gpu = Device::cuda();
  EXPECT_EQ(io::LoadOptions{LoadMode::automatic}.on(gpu).mode, LoadMode::mapped);
  EXPECT_EQ(io::LoadOptions{LoadMode::resident}.on(gpu).mode, LoadMode::resident);
  EXPECT_EQ(io::LoadOptions{LoadMode::automatic}.on(gpu).device, gpu);
  EXPECT_THROW((io::LoadOptions{LoadMode::automatic, kGiB}.on(gpu)), UsageError);
  EXPECT_THROW((io::LoadOptions{LoadMode::direct}.on(gpu)), UsageError);
  EXPECT_EQ((io::LoadOptions{.mode = LoadMode::automatic, .vram = kGiB}.on(gpu).vram), kGiB);
  EXPECT_THROW((io::LoadOptions{.vram = kGiB}.on({})), UsageError);
  EXPECT_EQ((io::LoadOptions{LoadMode::automatic, kGiB}.on({}).ram), kGiB);
}

}  // namespace
}  // namespace hpcdl::models
