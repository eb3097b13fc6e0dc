#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hpcdl/io/file_block.h"
#include "hpcdl/io/file_queue.h"

namespace hpcdl::io {

/// A few blocks of memory through which the layers of a model pass, in their order and again and again: layer i is
/// always in block i modulo the number of blocks. Blocks that nobody holds are read ahead of their use. For one
/// program at a time.
class LayerRing {
 public:
  /// Begins to read the first layers. `memory` has block_bytes(layers) for each of `blocks`, aligned; all of it and the
  /// files must outlive this.
  LayerRing(FileQueue& queue, std::span<const DirectFile> files, std::vector<FileBlock> layers, int blocks,
            std::byte* memory);
  /// Waits for reads that go on.
  ~LayerRing();
  LayerRing(const LayerRing&) = delete;
  LayerRing& operator=(const LayerRing&) = delete;

  /// The size of the largest layer.
  static std::int64_t block_bytes(std::span<const FileBlock> layers);

  int layers() const { return static_cast<int>(layers_.size()); }
  int block_of(int layer) const { return layer % static_cast<int>(blocks_.size()); }
  std::byte* memory_of(int layer) const { return memory_ + block_of(layer) * block_bytes_; }
  std::int64_t block_bytes() const { return block_bytes_; }

  /// Returns when the layer is in its block, where it stays until release(). A program holds one layer at a time. Any
  /// order is right; that of the layers is fast. Throws Error if it cannot be read; it may then be fetched again.
  void fetch(int layer);
  /// Its block takes another layer. No effect on a layer that is not held.
  void release(int layer);

  /// Time that fetch() has waited, and bytes that have been asked for, since the beginning.
  double seconds_waited() const { return waited_; }
  std::int64_t bytes_read() const { return bytes_; }

 private:
  struct Block {
    int layer = -1;  // that it holds or waits for; -1: it is free
    FileQueue::Moving reading = {};
  };
  void read_ahead();
  void restart(int layer);

  FileQueue& queue_;
  std::span<const DirectFile> files_;
  std::vector<FileBlock> layers_;
  std::vector<Block> blocks_;
  std::byte* memory_;
  std::int64_t block_bytes_;
  int next_fetch_ = 0, next_read_ = 0;  // layers
  double waited_ = 0;
  std::int64_t bytes_ = 0;
};

}  // namespace hpcdl::io
