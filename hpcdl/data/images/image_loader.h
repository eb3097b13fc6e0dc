#pragma once
// Batches of images for training and evaluation. The order of training samples, and all random draws for them, are a
// pure function of (seed, epoch, index): neither the number of workers nor of ranks changes the order of images
// or any bit of them.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "hpcdl/core/pinned.h"
#include "hpcdl/data/images/augment.h"
#include "hpcdl/data/images/batch_queue.h"
#include "hpcdl/data/split_data.h"

namespace hpcdl::data {

struct ImageLoaderOptions {
  std::int64_t batch = 128;  // B, of this rank
  std::uint64_t seed = 0;
  int rank = 0, world = 1;  // among the ranks that share the data; see split_data()
  int workers = 2;          // threads that decode and augment; 0: next() does it in the caller
  int prefetch = 4;         // batches made ahead by all workers together; at least one per worker
  Device device = {};       // a GPU: batches lie in pinned memory, from which it copies asynchronously
  bool bytes = false;       // pixels stay bytes, a fourth of the memory; normalise them by table(); not with mixup
  AugmentOptions augment = {};
};

/// Layout of a batch in one block of memory, so that one copy moves it to a device. Offsets are in bytes.
struct ImageBatchLayout {
  std::int64_t batch = 0, height = 0, width = 0;
  DType pixel = DType::f32;                                                         // or u8
  std::int64_t ids = 0, targets = 0, targets_b = 0, mix = 0, mix_b = 0, bytes = 0;  // images begin at 0

  ImageBatchLayout() = default;
  ImageBatchLayout(std::int64_t batch, std::int64_t height, std::int64_t width, DType pixel = DType::f32);
  Spec images() const { return {{batch, height, width, 3}, pixel}; }
  std::int64_t pixels() const { return height * width * 3; }  // of one image
};

/// Valid until the next call of the function that returned it.
struct ImageBatch {
  std::span<const float> images;            // (B, H, W, 3), or
  std::span<const std::uint8_t> pixels;     // the same with ImageLoaderOptions::bytes
  std::span<const std::int32_t> targets;    // (B); -1: no sample, in the last batch of an evaluation
  std::span<const std::int32_t> targets_b;  // (B), of the partners in mixup; without mixup the targets again
  std::span<const float> mix, mix_b;  // (B), the weight of the target, 1 without mixup; that of the partner is 1 - mix
  std::span<const std::int64_t> ids;  // (B), which samples of the set; -1: none
  std::int64_t valid = 0;             // targets >= 0
  LoaderState after;                  // of the loader, once this batch is done
  std::span<const std::byte> block;   // all of it, as the layout says
};

/// Bytes for batches that are made ahead, and for the threads that make them.
class ImageSlots {
 public:
  ImageSlots(const ImageBatchLayout& layout, std::size_t slots, std::size_t workers, Device device);
  struct Rows {
    std::span<float> images;
    std::span<std::uint8_t> pixels;
    std::span<std::int64_t> ids;
    std::span<std::int32_t> targets, targets_b;
    std::span<float> mix, mix_b;
  };
  Rows rows(std::size_t slot);
  const ImageBatch& batch(std::size_t slot) const { return batches_[slot]; }
  ImageBatch& batch(std::size_t slot) { return batches_[slot]; }
  Augmenter::Scratch& scratch(std::size_t worker) { return scratch_[worker]; }
  const ImageBatchLayout& layout() const { return layout_; }

 private:
  ImageBatchLayout layout_;
  Pinned memory_;  // slots one after the other
  std::vector<ImageBatch> batches_;
  std::vector<Augmenter::Scratch> scratch_;
};

/// Endless batches. When the samples of an epoch end, the batch is filled from the next epoch: no sample is dropped or
/// comes twice in an epoch, and every batch is full.
class ImageLoader {
 public:
  ImageLoader(std::shared_ptr<const ImageSet> set, const ImageLoaderOptions& options, LoaderState start = {});

  const ImageBatch& next();
  /// The position of the batch after the last one returned, which a checkpoint stores.
  LoaderState state() const { return state_; }
  std::int64_t samples_per_epoch() const { return set_->count(); }
  const ImageBatchLayout& layout() const { return slots_.layout(); }
  /// See Augmenter::table().
  std::vector<float> table() const { return augment_.table(); }
  const ImageSet& set() const { return *set_; }
  /// Time that next() has waited since construction; without workers, time of making batches.
  double waited_seconds() const { return queue_.waited_seconds(); }

 private:
  void make(std::int64_t b, std::size_t slot, std::size_t worker);

  std::shared_ptr<const ImageSet> set_;
  ImageLoaderOptions options_;
  LoaderState start_, state_;
  Augmenter augment_;
  ImageSlots slots_;
  BatchQueue queue_;  // last, because its threads use the other members
};

/// Every image once, in order, without random draws; the last batch is filled with black images and targets of -1.
/// Batches are distributed among the ranks in turns.
class ImageEvalBatches {
 public:
  ImageEvalBatches(std::shared_ptr<const ImageSet> set, const ImageLoaderOptions& options);

  /// nullptr at the end.
  const ImageBatch* next();
  /// Starts again at the first batch.
  void rewind();
  /// Images of all batches of all ranks.
  std::int64_t samples() const { return set_->count(); }
  std::int64_t batches() const { return batches_; }  // of this rank
  const ImageBatchLayout& layout() const { return slots_.layout(); }
  std::vector<float> table() const { return augment_.table(); }
  double waited_seconds() const { return waited_ + queue_->waited_seconds(); }

 private:
  void make(std::int64_t b, std::size_t slot, std::size_t worker);

  std::shared_ptr<const ImageSet> set_;
  ImageLoaderOptions options_;
  Augmenter augment_;
  std::int64_t batches_;
  ImageSlots slots_;
  double waited_ = 0;
  std::unique_ptr<BatchQueue> queue_;
};

}  // namespace hpcdl::data
