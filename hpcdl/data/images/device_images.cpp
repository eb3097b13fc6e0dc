#include "hpcdl/data/images/device_images.h"

namespace hpcdl::data {

DeviceImages::DeviceImages(Next next, const ImageBatchLayout& layout, const Stream& compute)
    : next_(std::move(next)), layout_(layout), compute_(compute), copies_(compute.device(), compute.pool()) {
  if (compute.device().is_cuda())
    for (Side& s : sides_) s.memory = Buffer(layout.bytes, compute.device());
}

void DeviceImages::describe(const ImageBatch& from, std::byte* memory, DeviceBatch& to) const {
  const auto device = compute_.device();
  const std::int64_t b = layout_.batch;
  to.images = Tensor(memory, {{b, layout_.height, layout_.width, 3}, DType::f32}, device);
  to.targets = Tensor(memory + layout_.targets, {{b}, DType::i32}, device);
  to.targets_b = Tensor(memory + layout_.targets_b, {{b}, DType::i32}, device);
  to.mix = Tensor(memory + layout_.mix, {{b}, DType::f32}, device);
  to.ids.assign(from.ids.begin(), from.ids.end());
  to.valid = from.valid;
  to.after = from.after;
}

void DeviceImages::begin_next() {
  Side& side = sides_[1 - now_];
  if (!compute_.device().is_cuda() || side.there || ended_) return;
  copies_.synchronize();  // the host's block of the batch before goes back to the loader; its copy began a step ago
  const ImageBatch* from = next_();
  ended_ = from == nullptr;
  if (ended_) return;
  describe(*from, side.memory.data(), side.batch);
  side.used.wait(copies_);
  const Spec bytes{{layout_.bytes}, DType::u8};
  copy(copies_, Tensor(side.memory.data(), bytes, compute_.device()), View(from->block.data(), bytes));
  side.copied.record(copies_);
  side.there = true;
}

const DeviceBatch* DeviceImages::next() {
  if (!compute_.device().is_cuda()) {
    const ImageBatch* from = next_();
    if (from == nullptr) return nullptr;
    describe(*from, const_cast<std::byte*>(from->block.data()), sides_[0].batch);
    return &sides_[0].batch;
  }
  sides_[now_].used.record(compute_);  // all work on the batch before is queued
  begin_next();
  Side& side = sides_[1 - now_];
  if (!side.there) return nullptr;
  side.copied.wait(compute_);
  side.there = false;
  now_ = 1 - now_;
  return &side.batch;
}

}  // namespace hpcdl::data
