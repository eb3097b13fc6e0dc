#pragma once
// The shape of an image classifier, as described by TOML [model] and the config.json of a saved folder.

#include <filesystem>
#include <string>
#include <vector>

#include "hpcdl/io/config_visitor.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/model_config.h"

namespace hpcdl::models {

enum class ImageFamily { simple_cnn, resnet18 };
/// The first layers of a ResNet. cifar: 3x3, all pixels kept; imagenet: 7x7 with stride 2 and a max pool, a sixteenth
/// of the pixels.
enum class Stem { cifar, imagenet };

struct ImageConfig {
  ImageFamily family = ImageFamily::simple_cnn;
  Stem stem = Stem::cifar;
  std::int64_t classes = 10;
  std::int64_t size = 0;                   // rows and columns of an image; 0: 32, or 224 with the imagenet stem
  std::int64_t width = 64;                 // channels of the first layer; all others have multiples of it
  bool normalise = true;                   // trained on pixels with mean 0 and deviation 1; false: in [0, 1]
  std::vector<float> mean = {}, std = {};  // normalisation used in training, per channel; empty: the data set's
  std::vector<std::string> labels = {};    // names of the classes that it was trained on; empty: unknown

  /// Replaces zeros, then checks; throws UsageError "[model] ..." that names what is inconsistent.
  void resolve();
  bool operator==(const ImageConfig&) const = default;
};

/// Converts between a classifier's family and the family in the [model] section of a run.
constexpr io::Family family_of(ImageFamily f) {
  return f == ImageFamily::resnet18 ? io::Family::resnet18 : io::Family::simple_cnn;
}
constexpr ImageFamily image_family(io::Family f) {
  return f == io::Family::resnet18 ? ImageFamily::resnet18 : ImageFamily::simple_cnn;
}

/// Reads or writes FOLDER/config.json. Reading throws Error for another kind of model.
ImageConfig read_image_config(const std::filesystem::path& folder);
void write_image_config(const std::filesystem::path& folder, const ImageConfig& config);
io::Json make_image_config(const ImageConfig& config);
/// Whether a config.json describes an image classifier.
bool is_image_config(const io::Json& config);

}  // namespace hpcdl::models

template <> struct hpcdl::io::EnumNames<hpcdl::models::ImageFamily> {
  static constexpr std::pair<models::ImageFamily, std::string_view> values[] = {
      {models::ImageFamily::simple_cnn, "simple_cnn"}, {models::ImageFamily::resnet18, "resnet18"}};
};
template <> struct hpcdl::io::EnumNames<hpcdl::models::Stem> {
  static constexpr std::pair<models::Stem, std::string_view> values[] = {{models::Stem::cifar, "cifar"},
                                                                         {models::Stem::imagenet, "imagenet"}};
};
