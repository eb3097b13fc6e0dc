#pragma once
// A folder of images: one sub-folder for each class, in the order of their names.

#include "hpcdl/data/images/image_set.h"

namespace hpcdl::data {

/// DIR/train/CLASS/*.jpg and DIR/val or DIR/test, each read when it is asked for. Without those, DIR/CLASS/*.jpg: of
/// each class every tenth image by name is the test split, the others the training split. To the
/// classes of a model, DIR/val and DIR/test by themselves are test splits as well, beside DIR/train.
class ImageFolder : public ImageSet {
 public:
  /// Throws Error when there is no class or no image, or test has a class that train, or the model, has not. Warns of
  /// sub-folders without an image, which are no classes.
  ImageFolder(const fs::path& path, Split split, const OpenImages& options = {});
  /// False when `path` has no sub-folder with images.
  static bool is_one(const fs::path& path);

  std::int64_t count() const override { return static_cast<std::int64_t>(files_.size()); }
  std::int32_t target(std::int64_t i) const override { return targets_.at(static_cast<std::size_t>(i)); }
  void decode(std::int64_t i, Picture& to) const override;

 private:
  std::vector<fs::path> files_;
  std::vector<std::int32_t> targets_;
};

}  // namespace hpcdl::data
