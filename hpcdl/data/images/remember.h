#pragma once
// Images that are costly to make and of one size, kept in memory once they have been made.

#include <atomic>
#include <memory>

#include "hpcdl/data/images/image_set.h"

namespace hpcdl::data {

/// The same images as `set`, whose decode() each costs once; a byte of memory for each of its bytes, taken as images
/// come. An image that two threads want at once is made twice and kept once.
class RememberedImages : public ImageSet {
 public:
  /// Throws Error when the images of `set` differ in size.
  explicit RememberedImages(std::shared_ptr<const ImageSet> set);
  std::int64_t count() const override { return set_->count(); }
  std::int32_t target(std::int64_t i) const override { return set_->target(i); }
  void decode(std::int64_t i, Picture& to) const override;
  std::int64_t bytes_to_come() const override { return count() * static_cast<std::int64_t>(bytes_); }
  /// All of them, on so many threads: for readers that would otherwise wait for each image of the first epoch. 0: none.
  void make(int threads) const;

 private:
  enum State : std::uint8_t { empty, being_kept, kept };

  std::shared_ptr<const ImageSet> set_;
  std::size_t bytes_;                       // of an image
  std::unique_ptr<std::uint8_t[]> pixels_;  // not touched before it is written: pages that are not used cost nothing
  std::unique_ptr<std::atomic<std::uint8_t>[]> states_;
};

}  // namespace hpcdl::data
