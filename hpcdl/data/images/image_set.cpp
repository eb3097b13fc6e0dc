#include "hpcdl/data/images/image_set.h"

#include <system_error>

#include "hpcdl/core/error.h"
#include "hpcdl/data/images/cifar.h"
#include "hpcdl/data/images/image_folder.h"
#include "hpcdl/data/images/procedural.h"
#include "hpcdl/data/images/remember.h"

namespace hpcdl::data {

std::shared_ptr<const ImageSet> open_images(const std::string& path, Split split, const OpenImages& options) {
  if (path.empty()) {
    auto set = std::make_shared<ProceduralImages>(
        split == Split::train ? options.procedural_train : options.procedural_test, options.seed, split);
    if (options.coarse) fail_usage("data", "coarse classes are for CIFAR-100, and no images are given");
    if (!options.remember) return set;
    auto remembered = std::make_shared<RememberedImages>(std::move(set));
    remembered->make(options.make_now);
    return remembered;
  }
  std::error_code ec;
  require(fs::exists(path, ec), "data", "{}: no such file or folder; leave it empty for the procedural set", path);
  if (auto set = open_cifar(path, split, options.warn, options.coarse)) return set;
  if (options.coarse) fail_usage("data", "coarse classes are for CIFAR-100, which {} is not", path);
  if (ImageFolder::is_one(path)) return std::make_shared<ImageFolder>(path, split);
  fail("data",
       "{}: not a set of images. Expected an archive of CIFAR-10 or CIFAR-100 (cifar-10-binary.tar.gz, "
       "cifar-10-python.tar.gz, ...), its unpacked folder, "
       "or a folder with a sub-folder of .jpg or .png files for each class",
       path);
}

}  // namespace hpcdl::data
