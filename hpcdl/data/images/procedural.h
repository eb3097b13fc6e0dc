#pragma once
// A data set like CIFAR that is computed, not stored: ten classes of shapes and textures on 32 x 32 pixels.

#include "hpcdl/data/images/image_set.h"

namespace hpcdl::data {

/// Sample i is a pure function of (seed, split, i), to the bit. The class is the figure; its position, size, rotation,
/// colours and contrast, a second figure that is half hidden, a gradient and noise are random. Colours depend a little
/// on the class, which is all that a linear classifier can learn.
class ProceduralImages : public ImageSet {
 public:
  ProceduralImages(std::int64_t count, std::uint64_t seed, Split split);
  std::int64_t count() const override { return count_; }
  std::int32_t target(std::int64_t i) const override;
  void decode(std::int64_t i, Picture& to) const override;

 private:
  std::int64_t count_;
  std::uint64_t seed_;
  Split split_;
};

}  // namespace hpcdl::data
