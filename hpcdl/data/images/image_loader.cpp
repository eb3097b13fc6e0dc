#include "hpcdl/data/images/image_loader.h"

#include <algorithm>
#include <cstring>

#include "hpcdl/core/error.h"
#include "hpcdl/data/permute.h"

namespace hpcdl::data {
namespace {

std::size_t at_least_one(int workers) { return static_cast<std::size_t>(std::max(workers, 1)); }

const ImageLoaderOptions& checked(const ImageLoaderOptions& o) {
  require(o.batch > 0, "data", "expected a batch of at least 1 image, found {}", o.batch);
  require(o.world > 0 && o.rank >= 0 && o.rank < o.world, "data", "rank {} of {}", o.rank, o.world);
  require(o.workers >= 0 && o.workers <= 256, "data", "expected 0 to 256 loader workers, found {}", o.workers);
  require(!o.bytes || o.augment.mixup <= 0, "data", "mixup needs images as f32, not as bytes");
  require(o.prefetch >= 0 && o.prefetch <= 4096, "data", "expected 0 to 4096 batches ahead, found {}", o.prefetch);
  return o;
}

std::shared_ptr<const ImageSet> checked(std::shared_ptr<const ImageSet> set) {
  require(set && set->count() > 0, "data", "no images");
  return set;
}

template <class T> std::span<T> row_of(std::span<T> all, std::int64_t row, std::int64_t size) {
  return all.subspan(static_cast<std::size_t>(row * size), static_cast<std::size_t>(size));
}

}  // namespace

ImageBatchLayout::ImageBatchLayout(std::int64_t batch_, std::int64_t height_, std::int64_t width_, DType pixel_)
    : batch(batch_), height(height_), width(width_), pixel(pixel_) {
  const auto place = [&](std::int64_t size) {
    const auto at = bytes;
    bytes += (batch * size + 63) / 64 * 64;
    return at;
  };
  place(pixels() * dtype_bytes(pixel));
  ids = place(sizeof(std::int64_t));
  targets = place(sizeof(std::int32_t)), targets_b = place(sizeof(std::int32_t));
  mix = place(sizeof(float)), mix_b = place(sizeof(float));
}

ImageSlots::ImageSlots(const ImageBatchLayout& layout, std::size_t slots, std::size_t workers, Device device)
    : layout_(layout),
      memory_(layout.bytes * static_cast<std::int64_t>(slots), device),
      batches_(slots),
      scratch_(workers) {
  std::memset(memory_.data(), 0, static_cast<std::size_t>(memory_.bytes()));  // including the gaps between the parts
  for (std::size_t s = 0; s < slots; ++s) {
    const Rows r = rows(s);
    const auto bytes = static_cast<std::size_t>(layout.bytes);
    batches_[s] = {r.images, r.pixels, r.targets,    r.targets_b, r.mix,
                   r.mix_b,  r.ids,    layout.batch, {},          {memory_.data() + s * bytes, bytes}};
  }
}

ImageSlots::Rows ImageSlots::rows(std::size_t slot) {
  std::byte* begin = memory_.data() + slot * static_cast<std::size_t>(layout_.bytes);
  const auto b = static_cast<std::size_t>(layout_.batch);
  const auto part = [&]<class T>(T*, std::int64_t offset, std::size_t n) {
    return std::span<T>(reinterpret_cast<T*>(begin + offset), n);
  };
  const auto pixels = b * static_cast<std::size_t>(layout_.pixels());
  const bool bytes = layout_.pixel == DType::u8;
  return {part(static_cast<float*>(nullptr), 0, bytes ? 0 : pixels),
          part(static_cast<std::uint8_t*>(nullptr), 0, bytes ? pixels : 0),
          part(static_cast<std::int64_t*>(nullptr), layout_.ids, b),
          part(static_cast<std::int32_t*>(nullptr), layout_.targets, b),
          part(static_cast<std::int32_t*>(nullptr), layout_.targets_b, b),
          part(static_cast<float*>(nullptr), layout_.mix, b),
          part(static_cast<float*>(nullptr), layout_.mix_b, b)};
}

ImageLoader::ImageLoader(std::shared_ptr<const ImageSet> set, const ImageLoaderOptions& options, LoaderState start)
    : set_(checked(std::move(set))),
      options_(checked(options)),
      start_(start),
      state_(start),
      augment_(*set_, options.augment, options.seed),
      slots_({options.batch, augment_.height(), augment_.width(), options.bytes ? DType::u8 : DType::f32},
             BatchQueue::slots(options.workers, options.prefetch), at_least_one(options.workers), options.device),
      queue_(INT64_MAX, options.workers, options.prefetch,
             [this](std::int64_t b, std::size_t slot, std::size_t worker) { make(b, slot, worker); }) {
  require(start.epoch >= 0 && start.index >= 0, "data",
          "a loader cannot continue at epoch {}, index {}: the data have no such position", start.epoch, start.index);
}

void ImageLoader::make(std::int64_t b, std::size_t slot, std::size_t worker) {
  const std::int64_t n = set_->count(), global = options_.batch * options_.world;
  const auto part = split_data(advanced(start_, b * global, n), global, n, options_.rank, options_.world);
  const auto rows = slots_.rows(slot);
  for (std::int64_t row = 0; row < options_.batch; ++row) {
    const auto at = static_cast<std::size_t>(row);
    const auto place = advanced(part.first, row, n);
    const Permutation order(static_cast<std::uint64_t>(n), options_.seed, static_cast<std::uint64_t>(place.epoch));
    const auto sample = static_cast<std::int64_t>(order(static_cast<std::uint64_t>(place.index)));
    Mix mix{sample, 1};
    if (options_.bytes)
      augment_.training(sample, place.epoch, slots_.scratch(worker), row_of(rows.pixels, row, augment_.pixels()));
    else mix = augment_.mixed(sample, place.epoch, slots_.scratch(worker), row_of(rows.images, row, augment_.pixels()));
    rows.ids[at] = sample;
    rows.targets[at] = set_->target(sample);
    rows.targets_b[at] = set_->target(mix.partner);
    rows.mix[at] = mix.weight, rows.mix_b[at] = 1 - mix.weight;
  }
  slots_.batch(slot).after = part.after;
}

const ImageBatch& ImageLoader::next() {
  const ImageBatch& batch = slots_.batch(queue_.next());
  state_ = batch.after;
  return batch;
}

ImageEvalBatches::ImageEvalBatches(std::shared_ptr<const ImageSet> set, const ImageLoaderOptions& options)
    : set_(checked(std::move(set))),
      options_(checked(options)),
      augment_(*set_,
               {.height = options.augment.height,
                .width = options.augment.width,
                .normalise = options.augment.normalise,
                .by = options.augment.by},
               options.seed),
      batches_(std::max<std::int64_t>(
                   (set_->count() + options.batch - 1) / options.batch - options.rank + options.world - 1, 0) /
               options.world),
      slots_({options.batch, augment_.height(), augment_.width(), options.bytes ? DType::u8 : DType::f32},
             BatchQueue::slots(options.workers, options.prefetch), at_least_one(options.workers), options.device) {
  rewind();
}

void ImageEvalBatches::make(std::int64_t b, std::size_t slot, std::size_t worker) {
  const std::int64_t first = (b * options_.world + options_.rank) * options_.batch;
  const auto rows = slots_.rows(slot);
  std::fill(rows.mix.begin(), rows.mix.end(), 1.f);
  auto& batch = slots_.batch(slot);
  batch.valid = std::clamp<std::int64_t>(set_->count() - first, 0, options_.batch);
  for (std::int64_t row = 0; row < options_.batch; ++row) {
    const auto at = static_cast<std::size_t>(row);
    const std::int64_t sample = row < batch.valid ? first + row : -1;
    const auto write = [&](auto image) {
      if (sample >= 0) augment_.plain(sample, slots_.scratch(worker), image);
      else std::fill(image.begin(), image.end(), 0);
    };
    if (options_.bytes) write(row_of(rows.pixels, row, augment_.pixels()));
    else write(row_of(rows.images, row, augment_.pixels()));
    rows.ids[at] = sample;
    rows.targets[at] = rows.targets_b[at] = sample >= 0 ? set_->target(sample) : -1;
  }
}

void ImageEvalBatches::rewind() {
  if (queue_) waited_ += queue_->waited_seconds();
  queue_.reset();  // its threads write the slots
  queue_ = std::make_unique<BatchQueue>(
      batches_, options_.workers, options_.prefetch,
      [this](std::int64_t b, std::size_t slot, std::size_t worker) { make(b, slot, worker); });
}

const ImageBatch* ImageEvalBatches::next() {
  return queue_->taken() == batches_ ? nullptr : &slots_.batch(queue_->next());
}

}  // namespace hpcdl::data
