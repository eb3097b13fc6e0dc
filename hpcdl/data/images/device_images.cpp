#include "hpcdl/data/images/device_images.h"

#include <algorithm>

#include "hpcdl/core/error.h"
#include "hpcdl/data/images/normalise.h"

namespace hpcdl::data {

DeviceImages::DeviceImages(Next next, const ImageBatchLayout& layout, const Stream& compute,
                           const std::vector<float>& table, int blocks)
    : next_(std::move(next)),
      layout_(layout),
      compute_(compute),
      copies_(compute.device(), compute.pool()),
      blocks_(static_cast<std::size_t>(blocks)) {
  const bool bytes = layout.pixel == DType::u8;
  require(compute.device().is_cuda() && blocks >= 2, "data", "copying batches to a GPU needs at least 2 blocks, got {}",
          blocks);
  require(!bytes || std::ssize(table) == 3 * 256, "data", "expected a table (256, 3) F32 for images of bytes, got {}",
          table.size());
  for (auto& b : blocks_) {
    b.memory = Buffer(layout.bytes, compute.device());
    if (bytes) b.numbers = Buffer(layout.batch * layout.pixels() * std::int64_t{sizeof(float)}, compute.device());
  }
  if (!bytes) return;
  table_ = OwnedTensor({{256, 3}, DType::f32}, compute.device());
  copy(copies_, table_.tensor, View(table.data(), table_.tensor.spec()));
  copies_.synchronize();
}

void DeviceImages::describe(const ImageBatch& from, Block& to) const {
  const auto device = compute_.device();
  const Shape rows{layout_.batch};
  auto* memory = to.memory.data();
  auto& b = to.batch;
  b.images = Tensor(to.numbers.bytes() ? to.numbers.data() : memory, {layout_.images().shape, DType::f32}, device);
  b.targets = Tensor(memory + layout_.targets, {rows, DType::i32}, device),
  b.targets_b = Tensor(memory + layout_.targets_b, {rows, DType::i32}, device);
  b.mix = Tensor(memory + layout_.mix, {rows, DType::f32}, device),
  b.mix_b = Tensor(memory + layout_.mix_b, {rows, DType::f32}, device);
  b.ids.assign(from.ids.begin(), from.ids.end());
  b.valid = from.valid;
  b.after = from.after;
}

const DeviceBatch* DeviceImages::next() {
  Block& block = blocks_[at_];
  if (block.timed) starved_ += std::max(0.0, TimedEvent::seconds_between(block.asked, block.there));
  block.timed = false;
  block.asked.record(compute_);
  copies_.synchronize();  // of the previous batch, which is done: its memory returns to the loader
  const ImageBatch* from = next_();
  if (!from) return nullptr;
  at_ = (at_ + 1) % blocks_.size();
  blocks_[at_].asked.wait(copies_);  // all work that reads the previous contents was queued before this event
  const auto device = compute_.device();
  auto* memory = block.memory.data();
  const Spec bytes{{layout_.bytes}, DType::u8};
  copy(copies_, Tensor(memory, bytes, device), View(from->block.data(), bytes));
  describe(*from, block);
#if HPCDL_CUDA
  if (block.numbers.bytes())
    normalise(copies_, block.batch.images, Tensor(memory, layout_.images(), device),
              Tensor(memory + layout_.ids, {{layout_.batch}, DType::i64}, device), table_.tensor);
#endif
  block.there.record(copies_);
  block.there.wait(compute_);
  block.timed = true;
  return &block.batch;
}

}  // namespace hpcdl::data
