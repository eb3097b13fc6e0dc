#include "hpcdl/data/images/image_folder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <system_error>

#include "hpcdl/core/error.h"
#include "hpcdl/data/images/decode_file.h"
#include "hpcdl/io/file.h"

namespace hpcdl::data {
namespace {

constexpr std::int64_t kMostBytes = std::int64_t{1} << 28;  // of one file

bool is_folder(const fs::path& path) {
  std::error_code ec;
  return fs::is_directory(path, ec);
}

bool is_class(const fs::path& path) {
  if (!is_folder(path)) return false;
  const auto files = io::list_folder(path);
  return std::any_of(files.begin(), files.end(), is_image_name);
}

/// Sub-folders that hold an image, by name.
std::vector<fs::path> class_folders(const fs::path& path, const std::function<void(const std::string&)>& warn = {}) {
  std::vector<fs::path> found;
  for (const auto& sub : io::list_folder(path)) {
    if (is_class(sub)) found.push_back(sub);
    else if (warn && is_folder(sub))
      warn(fmt::format("{} contains no .jpg, .jpeg or .png, so it is not a class", sub.string()));
  }
  return found;
}

/// Whether the splits have their own folders. A class may be called train, too, next to other classes.
bool splits_apart(const fs::path& path) {
  if (!is_folder(path / "train")) return false;
  if (!is_class(path / "train")) return true;
  const auto folders = io::list_folder(path);
  return std::none_of(folders.begin(), folders.end(), [](const fs::path& sub) {
    const auto name = sub.filename();
    return name != "train" && name != "val" && name != "test" && is_class(sub);
  });
}

/// Whether it is val or test next to train.
bool is_for_testing(const fs::path& path) {
  auto whole = fs::absolute(path).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();
  return (whole.filename() == "val" || whole.filename() == "test") && splits_apart(whole.parent_path());
}

/// Of one of them.
std::optional<fs::path> split_folder(const fs::path& path, Split split) {
  if (split == Split::train) return path / "train";
  for (const char* name : {"val", "test"})
    if (is_folder(path / name)) return path / name;
  return std::nullopt;
}

}  // namespace

bool ImageFolder::is_one(const fs::path& path) {
  return is_folder(path) && !class_folders(splits_apart(path) ? path / "train" : path).empty();
}

ImageFolder::ImageFolder(const fs::path& path, Split split, const OpenImages& options)
    // Mean and standard deviation of ImageNet, which are usual for photographs.
    : ImageSet({.name = "images of " + path.string(),
                .normalisation = {{0.485f, 0.456f, 0.406f}, {0.229f, 0.224f, 0.225f}}}) {
  const bool apart = splits_apart(path);
  const bool of_model = split == Split::test && !options.classes.empty();  // only the test split is opened
  const bool all = apart || (of_model && is_for_testing(path));
  const auto folder = apart ? split_folder(path, split) : path;
  require(folder.has_value(), "data", "{}: expected a folder val or test next to train", path.string());
  info_.classes = options.classes;
  if (info_.classes.empty())
    for (const auto& c : class_folders(apart ? path / "train" : path, split == Split::train ? options.warn : nullptr))
      info_.classes.push_back(c.filename().string());
  require(!info_.classes.empty(), "data",
          "{}: expected sub-folders, one for each class, with images (.jpg, .jpeg, .png)", path.string());
  for (const auto& c : class_folders(*folder)) {
    const auto name = c.filename().string();
    const auto at = std::find(info_.classes.begin(), info_.classes.end(), name);
    require(at != info_.classes.end(), "data", "{}: class {} is not among the classes of the training images: {}",
            folder->string(), name, fmt::join(info_.classes, ", "));
    std::int64_t nth = 0;
    for (const auto& file : io::list_folder(c)) {
      if (!is_image_name(file)) continue;
      const bool tenth = ++nth % 10 == 0;
      if (!all && tenth != (split == Split::test)) continue;
      files_.push_back(file);
      targets_.push_back(static_cast<std::int32_t>(at - info_.classes.begin()));
    }
  }
  require(!files_.empty(), "data",
          "{}: no images for this split; without folders train and val, every tenth image of a class is a test image",
          path.string());
}

void ImageFolder::decode(std::int64_t i, Picture& to) const {
  const fs::path& file = files_.at(static_cast<std::size_t>(i));
  decode_image(io::read_file(file, kMostBytes), file.string(), to);
}

}  // namespace hpcdl::data
