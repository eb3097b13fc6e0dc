#include "hpcdl/io/block_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>

#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/temp_folder.h"

namespace hpcdl::io {
namespace {

/// Groups of blocks of two parts each, of odd sizes and offsets, in two files.
class BlockCacheTest : public testing::Test {
 protected:
  static constexpr int kGroups = 4, kBlocks = 6;
  struct Part {
    std::size_t file;
    std::int64_t offset, bytes;
  };

  BlockCacheTest() {
    std::mt19937 draw(7);
    for (int i = 0; i < 2; ++i) {
      auto& text = texts_.emplace_back();
      for (int n = 0; n < 900'000; ++n) text += static_cast<char>(draw());
      paths_.push_back(tmp_ / ("file" + std::to_string(i)));
      write_file_atomic(paths_.back(), text);
      files_.emplace_back(paths_.back());
    }
    for (int g = 0; g < kGroups; ++g) {
      auto& group = groups_.emplace_back();
      for (int b = 0; b < kBlocks; ++b) {
        FileBlock block;
        for (const auto& p : parts(g, b)) block.add(p.file, p.offset, p.bytes);
        block.close();
        group.push_back(block);
      }
    }
  }

  static std::vector<Part> parts(int group, int block) {
    const int i = group * kBlocks + block;
    return {{0, 13 + i * 35'001, 30'000 + i}, {1, 4000 + i * 31'003, 9000}};
  }

  void expect_block(const BlockCache& cache, int group, int block) {
    const auto& file = groups_[static_cast<std::size_t>(group)][static_cast<std::size_t>(block)];
    for (const auto& p : parts(group, block)) {
      const auto* got = cache.memory_of(group, block) + file.position(p.file, p.offset);
      EXPECT_EQ(std::memcmp(got, texts_[p.file].data() + p.offset, static_cast<std::size_t>(p.bytes)), 0)
          << group << " " << block;
    }
  }

  TempFolder tmp_;
  std::vector<std::string> texts_;
  std::vector<fs::path> paths_;
  std::vector<DirectFile> files_;
  std::vector<std::vector<FileBlock>> groups_;
  FileQueue queue_;
};

TEST_F(BlockCacheTest, wanted_blocks_are_right_in_any_order_and_capacity) {
  for (const int capacity : {kBlocks, kBlocks + 1, 2 * kBlocks, kGroups * kBlocks}) {
    BlockCache cache(queue_, files_, groups_, capacity);
    std::mt19937 draw(static_cast<unsigned>(capacity));
    for (int i = 0; i < 400; ++i) {
      const int group = static_cast<int>(draw() % kGroups);
      std::vector<std::int32_t> wanted;
      for (auto n = draw() % 9; n > 0; --n) wanted.push_back(static_cast<int>(draw() % (kBlocks + 2)) - 1);
      cache.fetch(group, wanted);
      for (const auto b : wanted)
        if (b >= 0 && b < kBlocks) expect_block(cache, group, b);
    }
    EXPECT_LE(cache.found(), cache.wanted());
    EXPECT_GT(cache.found(), 0);
  }
}

TEST_F(BlockCacheTest, everything_is_read_once_if_it_fits) {
  BlockCache cache(queue_, files_, groups_, kGroups * kBlocks);
  const std::vector<std::int32_t> all{0, 1, 2, 3, 4, 5};
  for (int g = 0; g < kGroups; ++g) cache.fetch(g, all);
  const auto bytes = cache.bytes_read();
  for (int i = 0; i < 3 * kGroups; ++i) cache.fetch(i % kGroups, all);
  EXPECT_EQ(cache.bytes_read(), bytes);
}

/// Passes that want all blocks of all groups in turn: a cache that drops the oldest block would find none.
TEST_F(BlockCacheTest, passes_over_everything_find_what_fits) {
  constexpr int kCapacity = 3 * kBlocks;  // two groups in turn, and one that stays
  BlockCache cache(queue_, files_, groups_, kCapacity);
  const std::vector<std::int32_t> all{5, 4, 3, 2, 1, 0};
  std::int64_t before = 0;
  constexpr int kPasses = 10;
  for (int pass = 0; pass < 2 * kPasses; ++pass) {
    if (pass == kPasses) before = cache.bytes_read();
    for (int g = 0; g < kGroups; ++g) {
      cache.fetch(g, all);
      for (const auto b : all) expect_block(cache, g, b);
    }
  }
  std::int64_t bytes = 0;  // of a pass
  for (const auto& g : groups_)
    for (const auto& b : g) bytes += b.bytes();
  EXPECT_LT(static_cast<double>(cache.bytes_read() - before), 0.77 * kPasses * static_cast<double>(bytes));
}

TEST_F(BlockCacheTest, blocks_that_are_wanted_often_stay) {
  BlockCache cache(queue_, files_, groups_, kBlocks + 2);
  std::mt19937 draw(3);
  std::int64_t wanted = 0, found = 0;
  for (int i = 0; i < 4000; ++i) {
    if (i == 1000) wanted = cache.wanted(), found = cache.found();
    // Blocks 0 and 1 nearly always, the others rarely: the eight often used ones fit.
    const std::vector<std::int32_t> want{static_cast<int>(draw() % 2), 1 - static_cast<int>(draw() % 2),
                                         draw() % 10 == 0 ? 2 + static_cast<int>(draw() % 4) : 0};
    cache.fetch(i % kGroups, want);
  }
  EXPECT_GT(static_cast<double>(cache.found() - found), 0.85 * static_cast<double>(cache.wanted() - wanted));
}

TEST_F(BlockCacheTest, a_block_that_cannot_be_read_can_be_fetched_again) {
  BlockCache cache(queue_, files_, groups_, kBlocks);
  fs::resize_file(paths_[1], 4096);
  const std::vector<std::int32_t> wanted{2, 3};
  EXPECT_THROW(cache.fetch(3, wanted), Error);
  write_file_atomic(tmp_ / "copy", texts_[1]);
  fs::copy_file(tmp_ / "copy", paths_[1], fs::copy_options::overwrite_existing);
  for (int g = 0; g < kGroups; ++g) {
    cache.fetch(g, wanted);
    for (const auto b : wanted) expect_block(cache, g, b);
  }
}

TEST_F(BlockCacheTest, refuses_to_hold_less_than_a_group) {
  EXPECT_THROW(BlockCache(queue_, files_, groups_, kBlocks - 1), Error);
}

}  // namespace
}  // namespace hpcdl::io
