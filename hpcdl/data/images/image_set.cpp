#include "hpcdl/data/images/image_set.h"

#include <fmt/ranges.h>

#include <system_error>

#include "hpcdl/core/error.h"
#include "hpcdl/data/images/cifar.h"
#include "hpcdl/data/images/image_folder.h"
#include "hpcdl/data/images/procedural.h"
#include "hpcdl/data/images/remember.h"

namespace hpcdl::data {

namespace {

std::shared_ptr<const ImageSet> open_any(const std::string& path, Split split, const OpenImages& options) {
  if (path.empty()) {
    auto set = std::make_shared<ProceduralImages>(
        split == Split::train ? options.procedural_train : options.procedural_test, options.seed, split);
    if (options.coarse) fail_usage("data", "data.coarse is for CIFAR-100, but data.images is not set");
    if (!options.remember) return set;
    auto remembered = std::make_shared<RememberedImages>(std::move(set));
    remembered->make(options.make_now);
    return remembered;
  }
  std::error_code ec;
  require(fs::exists(path, ec), "data",
          "{}: no such file or folder; set data.images to an existing path, or leave it empty for the procedural set",
          path);
  if (auto set = open_cifar(path, split, options.warn, options.coarse)) return set;
  if (options.coarse)
    fail_usage("data", "data.coarse is for CIFAR-100, but {} is another data set: leave data.coarse out", path);
  if (ImageFolder::is_one(path)) return std::make_shared<ImageFolder>(path, split, options);
  fail("data",
       "{}: not a set of images: expected an archive of CIFAR-10 or CIFAR-100 (cifar-10-binary.tar.gz, "
       "cifar-10-python.tar.gz, ...), its unpacked folder, "
       "or a folder with a sub-folder of .jpg or .png files for each class",
       path);
}

}  // namespace

bool same_classes(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (const auto number = std::to_string(i); a[i] != b[i] && a[i] != number && b[i] != number) return false;
  return true;
}

std::shared_ptr<const ImageSet> open_images(const std::string& path, Split split, const OpenImages& options) {
  auto set = open_any(path, split, options);
  constexpr std::int64_t kCoarse = 20;
  if (set->info().name.starts_with("CIFAR-100") && std::ssize(options.classes) == kCoarse &&
      set->classes() != kCoarse) {
    auto coarse = options;
    coarse.coarse = true;
    set = open_any(path, split, coarse);
  }
  const auto& own = set->info().classes;
  require(options.classes.empty() || same_classes(own, options.classes), "data",
          "{} has the classes {}, but the model has learned {}", set->info().name, fmt::join(own, ", "),
          fmt::join(options.classes, ", "));
  return set;
}

}  // namespace hpcdl::data
