#pragma once
// The loader's batches on the GPU that computes. Each is copied from pinned memory on a stream of its own while the
// step before it runs, and bytes of pixels become numbers there; the host waits for the loader alone.

#include <functional>
#include <vector>

#include "hpcdl/core/buffer.h"
#include "hpcdl/core/stream.h"
#include "hpcdl/core/timed_event.h"
#include "hpcdl/data/images/image_loader.h"

namespace hpcdl::data {

/// Work on the tensors goes to the stream that DeviceImages was made with.
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
  /// `next` gives batches of `layout`, and null at the end; each must stay valid until it is called again.
  using Next = std::function<const ImageBatch*()>;
  /// compute: a stream of a GPU. table: Augmenter::table(), where pixels are bytes. blocks, at least 2: as many batches
  /// lie on the GPU.
  DeviceImages(Next next, const ImageBatchLayout& layout, const Stream& compute, const std::vector<float>& table = {},
               int blocks = 2);

  /// The next batch, or null at the end. What is queued on the compute stream from now on finds it there. It is valid
  /// until next() has been called `blocks` - 1 times more and what reads it was queued before the first of them. To be
  /// called while the step before still runs: the copy takes as long as that needs.
  const DeviceBatch* next();
  /// Time in which the compute stream had nothing left to do and the batch was not there yet: the loader's, or the
  /// copy's. The last `blocks` batches are not counted yet.
  double starved_seconds() const { return starved_; }

 private:
  struct Block {
    Buffer memory, numbers;  // as the layout says; (B, H, W, 3) f32, where that holds bytes
    DeviceBatch batch;
    TimedEvent asked, there;  // on the compute stream: all that was queued before; on the other one: batch is complete
    bool timed = false;       // both are recorded, and their times not counted yet
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
