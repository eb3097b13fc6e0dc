#pragma once
// The batches of the loader on the GPU that computes. Each is copied from pinned memory on a separate stream while the
// previous step runs, and bytes of pixels become numbers there; the host only waits for the loader.

#include <functional>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/core/timed_event.h"
#include "hpcdl/data/images/image_loader.h"
#include "hpcdl/stream.h"

namespace hpcdl::data {

/// Queue work on the tensors on the stream that was given to DeviceImages.
struct DeviceBatch {
  Tensor images;                  // (B, H, W, 3) f32
  Tensor targets, targets_b;      // (B) i32
  Tensor mix, mix_b;              // (B) f32
  std::vector<std::int64_t> ids;  // (B), on the host
  std::int64_t valid = 0;
  LoaderState after;
};

class DeviceImages {
 public:
  /// `next` returns batches of `layout`, and null at the end; each must stay valid until the next call.
  using Next = std::function<const ImageBatch*()>;
  /// compute: a stream of a GPU. table: Augmenter::table(), if pixels are bytes. blocks, at least 2: number of batches
  /// that fit on the GPU.
  DeviceImages(Next next, const ImageBatchLayout& layout, const Stream& compute, const std::vector<float>& table = {},
               int blocks = 2);

  /// The next batch, or null at the end. Work that is queued on the compute stream from now on can use it. It is valid
  /// until next() has been called `blocks` - 1 times more; work that reads it must be queued before the first of these
  /// calls. To be called while the previous step still runs, so that the copy overlaps with it.
  const DeviceBatch* next();
  /// Time in which the compute stream was idle because the batch had not arrived: time of the loader, or of the
  /// copy. The last `blocks` batches are not counted yet.
  double starved_seconds() const { return starved_; }

 private:
  struct Block {
    Buffer memory, numbers;  // as the layout says; (B, H, W, 3) f32, where that holds bytes
    DeviceBatch batch;
    TimedEvent asked,
        there;           // on the compute stream: all earlier work is done; on the other one: the batch is complete
    bool timed = false;  // both are recorded, but their times are not counted yet
  };
  void describe(const ImageBatch& from, Block& to) const;

  Next next_;
  ImageBatchLayout layout_;
  Stream compute_, copies_;
  OwnedTensor table_;
  std::vector<Block> blocks_;
  std::size_t at_ = 0;
  double starved_ = 0;
};

}  // namespace hpcdl::data
