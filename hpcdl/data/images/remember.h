#pragma once
// Keeps images in memory after they have been made: for images of one size that are expensive to make.

#include <atomic>
#include <memory>

#include "hpcdl/data/images/image_set.h"

namespace hpcdl::data {

/// The same images as `set`, each decoded once; a byte of memory for each byte of an image, used as images
/// are made. An image that two threads request at once is made twice and kept once.
class RememberedImages : public ImageSet {
 public:
  /// Throws Error if the images of `set` differ in size.
  explicit RememberedImages(std::shared_ptr<const ImageSet> set);
  std::int64_t count() const override { return set_->count(); }
  std::int32_t target(std::int64_t i) const override { return set_->target(i); }
  void decode(std::int64_t i, Picture& to) const override;
  std::int64_t bytes_to_come() const override { return count() * static_cast<std::int64_t>(bytes_); }
  /// Makes all of them, on this many threads: for readers that would otherwise wait for each image of the first epoch.
  /// 0: none.
  void make(int threads) const;

 private:
  enum State : std::uint8_t { empty, being_kept, kept };

  std::shared_ptr<const ImageSet> set_;
  std::size_t bytes_;  // of an image
  std::unique_ptr<std::uint8_t[]>
      pixels_;  // pages are not touched before they are written, so unused ones cost nothing
  std::unique_ptr<std::atomic<std::uint8_t>[]> states_;
};

}  // namespace hpcdl::data
