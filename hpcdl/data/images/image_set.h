#pragma once
// Labelled images, with one small interface for all sources. See docs/formats.md for the formats.

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace hpcdl::data {

namespace fs = std::filesystem;

/// One decoded image. The vector is reused from one decode to the next.
struct Picture {
  int height = 0, width = 0;
  std::vector<std::uint8_t> pixels;  // (height, width, 3), RGB
};

/// Per channel, of pixels in [0, 1]: x' = (x - mean) / std.
struct Normalisation {
  std::array<float, 3> mean = {0, 0, 0}, std = {1, 1, 1};
};

enum class Split { train, test };

struct ImageSetInfo {
  std::string name = {};                  // "CIFAR-10 (binary)"
  std::vector<std::string> classes = {};  // their names, by target
  int height = 0, width = 0;              // of every image; 0 where they differ
  Normalisation normalisation = {};
};

class ImageSet {
 public:
  virtual ~ImageSet() = default;
  virtual std::int64_t count() const = 0;
  /// The class of sample i.
  virtual std::int32_t target(std::int64_t i) const = 0;
  /// From any thread. Throws Error that names the file when it is damaged.
  virtual void decode(std::int64_t i, Picture& to) const = 0;
  /// Memory that it will additionally use once all images have been decoded.
  virtual std::int64_t bytes_to_come() const { return 0; }

  const ImageSetInfo& info() const { return info_; }
  std::int64_t classes() const { return static_cast<std::int64_t>(info_.classes.size()); }

 protected:
  explicit ImageSet(ImageSetInfo info) : info_(std::move(info)) {}
  ImageSetInfo info_;
};

struct OpenImages {
  std::uint64_t seed = 0;                                          // of the procedural set
  std::int64_t procedural_train = 50000, procedural_test = 10000;  // samples of it
  bool remember = true;  // keeps its images once they are made; 3 KB each, ten times as fast
  std::function<void(const std::string&)> warn = {};  // called with warnings, which are not errors
  bool coarse = false;                                // CIFAR-100: its 20 coarse classes, not the 100 fine ones
  std::vector<std::string> classes = {};  // the classes of a model, by target: the data must have no others, and use
                                          // their numbers; empty: the classes of the data. 20 of CIFAR-100 are the
                                          // coarse ones
  int make_now = 0;  // threads that make all remembered images at once; 0: each when it is first requested
};

/// Whether both name the same classes. If a source has no names, its classes are named by their numbers.
bool same_classes(const std::vector<std::string>& a, const std::vector<std::string>& b);

/// Opens `path`: empty: the procedural set; a folder or an archive of CIFAR-10 or CIFAR-100 in either format; a
/// folder of images. Throws Error if it is none of them.
std::shared_ptr<const ImageSet> open_images(const std::string& path, Split split, const OpenImages& options = {});

}  // namespace hpcdl::data
