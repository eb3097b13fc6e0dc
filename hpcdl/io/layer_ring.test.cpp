#include "hpcdl/io/layer_ring.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <random>
#include <string>

#include "hpcdl/buffer.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/temp_folder.h"

namespace hpcdl::io {
namespace {

/// Layers of two tensors each, of odd sizes and offsets, in two files.
class LayerRingTest : public testing::Test {
 protected:
  static constexpr int kLayers = 5;
  struct Part {
    std::size_t file;
    std::int64_t offset, bytes;
  };

  LayerRingTest() {
    std::mt19937 draw(7);
    std::string text[2];
    for (auto& t : text)
      for (int i = 0; i < 777'777; ++i) t += static_cast<char>(draw());
    for (int i = 0; i < 2; ++i) {
      texts_.push_back(text[i]);
      paths_.push_back(tmp_ / ("file" + std::to_string(i)));
      write_file_atomic(paths_.back(), text[i]);
    }
    for (const auto& p : paths_) files_.emplace_back(p);
    for (int l = 0; l < kLayers; ++l) {
      parts_.push_back({{0, 13 + l * 150'001, 90'000 + l}, {1, 40'000 + l * 130'003, 5000}});
      FileBlock block;
      for (const auto& p : parts_.back()) block.add(p.file, p.offset, p.bytes);
      block.close();
      layers_.push_back(block);
    }
  }

  void expect_layer(const LayerRing& ring, int layer) {
    for (const auto& p : parts_[static_cast<std::size_t>(layer)]) {
      const auto* got = ring.memory_of(layer) + layers_[static_cast<std::size_t>(layer)].position(p.file, p.offset);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(got) % 4096, static_cast<std::uintptr_t>(p.offset) % 4096);
      EXPECT_EQ(std::memcmp(got, texts_[p.file].data() + p.offset, static_cast<std::size_t>(p.bytes)), 0) << layer;
    }
  }

  TempFolder tmp_;
  std::vector<std::string> texts_;
  std::vector<fs::path> paths_;
  std::vector<DirectFile> files_;
  std::vector<std::vector<Part>> parts_;
  std::vector<FileBlock> layers_;
  Buffer memory_{4 << 20};
  FileQueue queue_;
};

TEST_F(LayerRingTest, layers_come_in_turn_again_and_again) {
  for (const int blocks : {1, 2, 3, 5}) {
    LayerRing ring(queue_, files_, layers_, blocks, memory_.data());
    for (int pass = 0; pass < 4; ++pass)
      for (int l = 0; l < kLayers; ++l) {
        ring.fetch(l);
        expect_layer(ring, l);
        ring.release(l);
      }
    EXPECT_GE(ring.bytes_read(), 4 * kLayers * 95'000);
  }
}

TEST_F(LayerRingTest, any_order_is_right) {
  LayerRing ring(queue_, files_, layers_, 2, memory_.data());
  std::mt19937 draw(1);
  for (int i = 0; i < 300; ++i) {
    const int l = static_cast<int>(draw() % kLayers);
    ring.fetch(l);
    expect_layer(ring, l);
    ring.fetch(l);  // it stays
    expect_layer(ring, l);
    if (draw() % 3 > 0) ring.release(l);  // a pass that ends early does not
    if (draw() % 3 == 0) ring.release(static_cast<int>(draw() % kLayers));
  }
}

TEST_F(LayerRingTest, a_layer_that_could_not_be_read_can_be_fetched_again) {
  LayerRing ring(queue_, files_, layers_, 2, memory_.data());
  ring.fetch(0);
  fs::resize_file(paths_[1], 4096);
  ring.release(0);
  const auto pass = [&] {
    for (int l = 0; l < kLayers; ++l) {
      ring.fetch(l);
      expect_layer(ring, l);
      ring.release(l);
    }
  };
  EXPECT_THROW(pass(), Error);
  EXPECT_THROW(pass(), Error);
  std::ofstream(paths_[1], std::ios::binary) << texts_[1];  // the same file, not another one in its place
  pass();
}

TEST(file_block, joins_ranges_that_touch) {
  FileBlock b;
  b.add(0, 5000, 100);
  b.add(0, 0, 10);
  b.add(0, 8192, 4096);
  b.add(1, 4095, 2);
  b.add(0, 100, 0);
  b.close();
  EXPECT_EQ(b.bytes(), 3 * 4096 + 2 * 4096);
  EXPECT_EQ(b.position(0, 0), 0);
  EXPECT_EQ(b.position(0, 5000), 5000);
  EXPECT_EQ(b.position(0, 8200), 8200);
  EXPECT_EQ(b.position(1, 4095), 3 * 4096 + 4095);
  EXPECT_THROW(b.position(1, 8192), Error);
}

}  // namespace
}  // namespace hpcdl::io
