#include "hpcdl/io/block_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include "hpcdl/core/clock.h"
#include "hpcdl/core/error.h"
#include "hpcdl/core/units.h"

namespace hpcdl::io {
namespace {

// After so many visits of a group, older ones count half.
constexpr float kVisits = 128;
// Tokens that want such a share of a group will want most of the next one, too.
constexpr double kMost = 0.75;

}  // namespace

BlockCache::BlockCache(FileQueue& queue, std::span<const DirectFile> files, std::vector<std::vector<FileBlock>> groups,
                       std::int64_t capacity)
    : queue_(queue), files_(files), stride_(block_bytes(groups)), free_(capacity) {
  std::int64_t count = 0;
  for (const auto& g : groups) {
    require(std::ssize(g) <= capacity, "io", "a cache of {} blocks cannot hold a group of {}", capacity, g.size());
    count += std::ssize(g);
  }
  bytes_mapped_ = count * stride_;
  if (bytes_mapped_ == 0) return;
  void* p = ::mmap(nullptr, static_cast<std::size_t>(bytes_mapped_), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  require(p != MAP_FAILED, "io", "no addresses for {} of blocks: {}", format_bytes(static_cast<double>(bytes_mapped_)),
          std::strerror(errno));
  memory_ = static_cast<std::byte*>(p);
  // A huge page would reach into a block that is not in memory.
  ::madvise(memory_, static_cast<std::size_t>(bytes_mapped_), MADV_NOHUGEPAGE);
  auto* at = memory_;
  for (auto& g : groups) {
    auto& group = groups_.emplace_back();
    for (auto& file : g) {
      group.blocks.push_back({.file = std::move(file), .memory = at});
      at += stride_;
    }
  }
}

BlockCache::~BlockCache() {
  ++fetch_;  // which wants nothing
  settle();
  if (memory_) ::munmap(memory_, static_cast<std::size_t>(bytes_mapped_));
}

std::int64_t BlockCache::block_bytes(std::span<const std::vector<FileBlock>> groups) {
  std::int64_t most = 0;
  for (const auto& g : groups)
    for (const auto& b : g) most = std::max(most, b.bytes());
  return most;
}

std::byte* BlockCache::memory_of(int group, int block) const {
  return groups_[static_cast<std::size_t>(group)].blocks[static_cast<std::size_t>(block)].memory;
}

float BlockCache::expected_wait(int of, const Block& block, int now) const {
  const auto& group = groups_[static_cast<std::size_t>(of)];
  const int next = (of - now + groups() - 1) % groups() + 1;  // 1: the next one; the present one comes last
  const float uses = std::max(block.uses, 0.5F);
  return static_cast<float>(next) + static_cast<float>(groups()) * (group.visits - std::min(uses, group.visits)) / uses;
}

void BlockCache::list_victims(int now, int keep) {
  victims_.clear();
  for (int i = 0; i < groups(); ++i)
    if (i != keep)
      for (auto& b : groups_[static_cast<std::size_t>(i)].blocks)
        if (b.here && !b.reading && b.fetched != fetch_) victims_.push_back({expected_wait(i, b, now), &b});
  std::ranges::make_heap(victims_, {}, &Victim::wait);
}

void BlockCache::move_pages(Block& from, Block& to) {
  from.here = false;
  const auto bytes = static_cast<std::size_t>(stride_);
#ifdef MREMAP_DONTUNMAP
  if (::mremap(from.memory, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to.memory) != MAP_FAILED)
    return;
#endif
  ::madvise(from.memory, bytes, MADV_DONTNEED);
}

/// Begins to read a block; false if there is no room.
bool BlockCache::start(Block& block) {
  if (free_ > 0) {
    --free_;
  } else {
    if (victims_.empty()) return false;
    std::ranges::pop_heap(victims_, {}, &Victim::wait);
    move_pages(*victims_.back().block, block);
    victims_.pop_back();
  }
  block.here = true;
  block.reading = queue_.start(block.file.pieces(files_, block.memory));
  bytes_ += block.file.bytes();
  return true;
}

void BlockCache::wait(Block& block) {
  if (!block.reading) return;
  const auto reading = std::exchange(block.reading, {});
  try {
    queue_.wait(reading);
  } catch (...) {
    block.here = false;
    ::madvise(block.memory, static_cast<std::size_t>(stride_), MADV_DONTNEED);
    ++free_;
    throw;
  }
}

/// Waits for all reads of blocks that the present fetch does not want.
void BlockCache::settle() {
  for (auto& g : groups_)
    for (auto& b : g.blocks) {
      if (b.fetched == fetch_) continue;
      try {
        wait(b);
      } catch (const std::exception&) {  // it is reported to who wants the block
      }
    }
}

/// Notes that blocks are wanted now, and returns them.
std::vector<BlockCache::Block*> BlockCache::note(Group& g, std::span<const std::int32_t> wanted) {
  ++fetch_;
  if (++g.visits > kVisits) {
    g.visits /= 2;
    for (auto& b : g.blocks) b.uses /= 2;
  }
  std::vector<Block*> blocks;
  for (const auto i : wanted) {
    if (i < 0 || i >= std::ssize(g.blocks)) continue;
    auto& b = g.blocks[static_cast<std::size_t>(i)];
    if (b.fetched == fetch_) continue;
    b.fetched = fetch_, ++b.uses, b.ahead = b.reading != nullptr;
    blocks.push_back(&b);
    ++wanted_, found_ += b.here;
  }
  return blocks;
}

void BlockCache::fetch(int group, std::span<const std::int32_t> wanted) {
  const auto begin = Clock::now();
  const auto blocks = note(groups_[static_cast<std::size_t>(group)], wanted);
  const auto missing = [](const Block* b) { return !b->here; };
  if (std::ranges::any_of(blocks, missing)) {
    list_victims(group, -1);
    for (auto* b : blocks) {
      if (b->here || start(*b)) continue;
      settle();  // blocks that were read ahead have taken the room
      list_victims(group, -1);
      require(start(*b), "io", "a cache of blocks has no room");
    }
  }
  if (std::ssize(blocks) >= kMost * blocks_of(group)) {
    const int next = (group + 1) % groups();
    list_victims(group, next);
    for (auto& b : groups_[static_cast<std::size_t>(next)].blocks)
      if (!b.here && !start(b)) break;
  }
  for (auto* b : blocks) {
    try {
      wait(*b);
    } catch (const std::exception&) {
      if (!b->ahead) throw;
      start(*b);  // the reason may have passed since
      wait(*b);
    }
  }
  waited_ += seconds_since(begin);
}

}  // namespace hpcdl::io
