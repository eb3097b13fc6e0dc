#include "hpcdl/io/layer_ring.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "hpcdl/core/clock.h"

namespace hpcdl::io {

LayerRing::LayerRing(FileQueue& queue, std::span<const DirectFile> files, std::vector<FileBlock> layers, int blocks,
                     std::byte* memory)
    : queue_(queue),
      files_(files),
      layers_(std::move(layers)),
      blocks_(static_cast<std::size_t>(blocks)),
      memory_(memory),
      block_bytes_(block_bytes(layers_)) {
  read_ahead();
}

LayerRing::~LayerRing() { restart(-1); }

std::int64_t LayerRing::block_bytes(std::span<const FileBlock> layers) {
  return std::ranges::max(layers, {}, &FileBlock::bytes).bytes();
}

void LayerRing::read_ahead() {
  for (;;) {
    auto& block = blocks_[static_cast<std::size_t>(block_of(next_read_))];
    if (block.layer >= 0) return;
    const auto& layer = layers_[static_cast<std::size_t>(next_read_)];
    block.layer = next_read_;
    block.reading = queue_.start(layer.pieces(files_, memory_of(next_read_)));
    bytes_ += layer.bytes();
    next_read_ = (next_read_ + 1) % layers();
  }
}

/// Frees all blocks; the layer is the next to be fetched. -1: none is.
void LayerRing::restart(int layer) {
  for (auto& block : blocks_) {
    try {
      if (block.reading) queue_.wait(block.reading);
    } catch (const std::exception&) {  // of a layer that nobody has asked for
    }
    block = {};
  }
  if (layer < 0) return;
  next_fetch_ = next_read_ = layer;
  read_ahead();
}

void LayerRing::fetch(int layer) {
  auto& block = blocks_[static_cast<std::size_t>(block_of(layer))];
  const bool held = block.layer == layer && !block.reading;
  if (held) return;
  if (layer != next_fetch_ || block.layer != layer) restart(layer);
  const auto start = Clock::now();
  try {
    queue_.wait(block.reading);
  } catch (...) {
    restart(-1);
    next_fetch_ = -1;  // so that the next one restarts
    throw;
  }
  waited_ += seconds_since(start);
  block.reading = {};
  next_fetch_ = (layer + 1) % layers();
}

void LayerRing::release(int layer) {
  auto& block = blocks_[static_cast<std::size_t>(block_of(layer))];
  if (block.layer != layer || block.reading) return;
  block = {};
  read_ahead();
}

}  // namespace hpcdl::io
