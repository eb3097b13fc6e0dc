#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "hpcdl/io/file_block.h"
#include "hpcdl/io/file_queue.h"

namespace hpcdl::io {

/// A cache of blocks of files, such as the experts of a mixture. A block is read when it is wanted, always to the same
/// address. Groups of blocks (layers) are visited in their order, again and again. If there is no room, the block goes
/// whose next use is expected to be farthest away. Its pages are then moved to the address of the new block, because
/// the system would clear new pages first. For one program at a time.
class BlockCache {
 public:
  /// `capacity` in blocks: at least as many as the largest group has. The files must outlive this. Throws Error if the
  /// system has no addresses left.
  BlockCache(FileQueue& queue, std::span<const DirectFile> files, std::vector<std::vector<FileBlock>> groups,
             std::int64_t capacity);
  /// Waits for reads that go on.
  ~BlockCache();
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  /// The memory that a block takes, which is that of the largest one.
  static std::int64_t block_bytes(std::span<const std::vector<FileBlock>> groups);

  int groups() const { return static_cast<int>(groups_.size()); }
  int blocks_of(int group) const { return static_cast<int>(groups_[static_cast<std::size_t>(group)].blocks.size()); }
  std::byte* memory_of(int group, int block) const;
  std::int64_t group_bytes(int group) const { return blocks_of(group) * stride_; }

  /// Returns when the wanted blocks of a group are in memory, where they stay until the next call. Numbers that are no
  /// blocks of the group are passed over, and a number may come twice. `all_next`: also begins to read all blocks of the next
  /// group. Throws Error if a block cannot be read; it may then be fetched again.
  void fetch(int group, std::span<const std::int32_t> wanted);

  /// Time that fetch() has waited, bytes that have been asked for, and blocks that were wanted and those of them that
  /// were in memory, since the beginning.
  double seconds_waited() const { return waited_; }
  std::int64_t bytes_read() const { return bytes_; }
  std::int64_t wanted() const { return wanted_; }
  std::int64_t found() const { return found_; }

 private:
  struct Block {
    FileBlock file;
    std::byte* memory = nullptr;
    bool here = false;         // or being read
    bool ahead = false;        // an earlier fetch than the present one began to read it
    std::int64_t fetched = 0;  // the last fetch that wanted it
    float uses = 0;            // visits of its group that wanted it
    FileQueue::Moving reading = {};
  };
  struct Group {
    std::vector<Block> blocks;
    float visits = 0;
  };
  /// Groups until the next use of a block of group `of`, as its past lets expect, when group `now` is visited.
  float expected_wait(int of, const Block& block, int now) const;
  /// Lists the blocks that may go, as a heap of how long they will not be used; none of group `keep`.
  void list_victims(int now, int keep);
  std::vector<Block*> note(Group& g, std::span<const std::int32_t> wanted);
  bool start(Block& block);
  void wait(Block& block);
  void settle();
  void move_pages(Block& from, Block& to);

  FileQueue& queue_;
  std::span<const DirectFile> files_;
  std::vector<Group> groups_;
  std::int64_t stride_;
  std::int64_t bytes_mapped_ = 0;
  std::byte* memory_ = nullptr;
  std::int64_t free_;       // blocks that may still be read without dropping another
  std::int64_t fetch_ = 1;  // number of the present one
  struct Victim {
    float wait;
    Block* block;
  };
  std::vector<Victim> victims_;
  double waited_ = 0;
  std::int64_t bytes_ = 0, wanted_ = 0, found_ = 0;
};

}  // namespace hpcdl::io
