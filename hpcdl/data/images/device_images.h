#pragma once
// The loader's batches on the device that computes. On a GPU each is copied while the step before it runs, on a stream of its own, from
// pinned memory to one of two blocks; on a CPU they stay where they are.

#include <array>
#include <functional>
#include <vector>

#include "hpcdl/core/buffer.h"
#include "hpcdl/core/stream.h"
#include "hpcdl/data/images/image_loader.h"

namespace hpcdl::data {

/// The tensors are valid until the next next(); work on them goes to the stream that DeviceImages was made with.
struct DeviceBatch {
  Tensor images;               // (B, H, W, 3) f32
  Tensor targets, targets_b;   // (B) i32
  Tensor mix;                  // (B) f32
  std::vector<std::int64_t> ids;  // (B), on the host
  std::int64_t valid = 0;
  LoaderState after;
};

class DeviceImages {
 public:
  /// `next` gives batches of `layout`, and null at the end; each must stay valid until it is called again.
  using Next = std::function<const ImageBatch*()>;
  DeviceImages(Next next, const ImageBatchLayout& layout, const Stream& compute);

  /// The next batch, or null at the end. What is queued on the compute stream from now on finds it there.
  const DeviceBatch* next();
  /// Takes the batch behind it and begins to copy it. To be called once the step on the last batch is queued; otherwise next() does it, and
  /// the device waits. On a CPU, where the loader's threads already work ahead: nothing.
  void begin_next();

 private:
  struct Side {
    Buffer memory;
    DeviceBatch batch;
    bool there = false;  // a copy was begun, and the batch not given out
    Event copied, used;
  };
  void describe(const ImageBatch& from, std::byte* memory, DeviceBatch& to) const;

  Next next_;
  ImageBatchLayout layout_;
  Stream compute_, copies_;
  std::array<Side, 2> sides_;
  std::size_t now_ = 1;  // the side given out last
  bool ended_ = false;
};

}  // namespace hpcdl::data
