#pragma once
// A folder of images: one sub-folder for each class, in the order of their names.

#include "hpcdl/data/images/image_set.h"

namespace hpcdl::data {

/// DIR/train/CLASS/*.jpg and DIR/val or DIR/test, each read when it is requested. Without those, DIR/CLASS/*.jpg: of
/// each class, every tenth image by name belongs to the test split, the others to the training split. For the
/// classes of a model, DIR/val and DIR/test without DIR/train can be opened as test splits, too.
class ImageFolder : public ImageSet {
 public:
  /// Throws Error if there is no class or no image, or if test has a class that train, or the model, does not have.
  /// Warns of sub-folders without images, which are not classes.
  ImageFolder(const fs::path& path, Split split, const OpenImages& options = {});
  /// False if `path` has no sub-folder with images.
  static bool is_one(const fs::path& path);

  std::int64_t count() const override { return static_cast<std::int64_t>(files_.size()); }
  std::int32_t target(std::int64_t i) const override { return targets_.at(static_cast<std::size_t>(i)); }
  void decode(std::int64_t i, Picture& to) const override;

 private:
  std::vector<fs::path> files_;
  std::vector<std::int32_t> targets_;
};

}  // namespace hpcdl::data
