#pragma once
// Batches of images for training and evaluation. The order of training samples, and all that is drawn for them, is a
// pure function of (seed, epoch, index): neither the number of workers nor of ranks changes which images follow each
// other, or a bit of them.

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
  int rank = 0, world = 1;  // of those that share the data; see split_data()
  int workers = 2;          // threads that decode and augment; 0: the caller does, in next()
  int prefetch = 4;         // batches made ahead, by all workers together; at least one a worker
  Device device = {};       // a GPU: batches lie in pinned memory, from which it copies on its own
  bool bytes = false;       // pixels stay bytes, a fourth of the memory; normalise them by table(); not with mixup
  AugmentOptions augment = {};
};

/// How a batch lies in one block of memory, so that one copy takes all of it to a device. Offsets are in bytes.
struct ImageBatchLayout {
  std::int64_t batch = 0, height = 0, width = 0;
  DType pixel = DType::f32;                                                         // or u8
  std::int64_t ids = 0, targets = 0, targets_b = 0, mix = 0, mix_b = 0, bytes = 0;  // images begin at 0

  ImageBatchLayout() = default;
  ImageBatchLayout(std::int64_t batch, std::int64_t height, std::int64_t width, DType pixel = DType::f32);
  Spec images() const { return {{batch, height, width, 3}, pixel}; }
  std::int64_t pixels() const { return height * width * 3; }  // of one image
};

/// Valid until the next call of what made it.
struct ImageBatch {
  std::span<const float> images;            // (B, H, W, 3), or
  std::span<const std::uint8_t> pixels;     // the same with ImageLoaderOptions::bytes
  std::span<const std::int32_t> targets;    // (B); -1: no sample, in the last batch of an evaluation
  std::span<const std::int32_t> targets_b;  // (B), of the partners in mixup; elsewhere the targets again
  std::span<const float> mix, mix_b;  // (B), the weight of the target, 1 without mixup, and of the partner's, 1 - mix
  std::span<const std::int64_t> ids;  // (B), which samples of the set; -1: none
  std::int64_t valid = 0;             // targets >= 0
  LoaderState after;                  // of the loader, once this batch is done
  std::span<const std::byte> block;   // all of it, as the layout says
};

/// Memory of batches that are made ahead, and of the threads that make them.
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

/// Endless batches. When an epoch's samples end, the batch is filled from the next epoch: none is dropped, none comes
/// twice in an epoch, and every batch is full.
class ImageLoader {
 public:
  ImageLoader(std::shared_ptr<const ImageSet> set, const ImageLoaderOptions& options, LoaderState start = {});

  const ImageBatch& next();
  /// The state from which the batch after the last one returned would come: what a checkpoint keeps.
  LoaderState state() const { return state_; }
  std::int64_t samples_per_epoch() const { return set_->count(); }
  const ImageBatchLayout& layout() const { return slots_.layout(); }
  /// See Augmenter::table().
  std::vector<float> table() const { return augment_.table(); }
  const ImageSet& set() const { return *set_; }
  /// Time next() has spent waiting since construction; without workers, making batches.
  double waited_seconds() const { return queue_.waited_seconds(); }

 private:
  void make(std::int64_t b, std::size_t slot, std::size_t worker);

  std::shared_ptr<const ImageSet> set_;
  ImageLoaderOptions options_;
  LoaderState start_, state_;
  Augmenter augment_;
  ImageSlots slots_;
  BatchQueue queue_;  // last: its threads use the others
};

/// Every image once, in order, nothing drawn; the last batch filled up with black images and targets of -1. Batches go
/// round the ranks.
class ImageEvalBatches {
 public:
  ImageEvalBatches(std::shared_ptr<const ImageSet> set, const ImageLoaderOptions& options);

  /// nullptr at the end.
  const ImageBatch* next();
  /// From the first batch again.
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
