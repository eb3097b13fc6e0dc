#include "hpcdl/data/images/cifar.h"

#include <md5.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <system_error>

#include "hpcdl/core/error.h"
#include "hpcdl/data/images/tar.h"
#include "hpcdl/io/file.h"

namespace hpcdl::data {
namespace {

/// One of the four published versions.
struct Version {
  const char* name;
  const char* folder;  // in the archive
  const char* archive;
  const char* md5;
  int classes;
  bool python;
  std::vector<std::string> train, test;
  const char* meta;
  const char* meta_key;                            // Python only
  const char *coarse_meta = "", *coarse_key = "";  // CIFAR-100: the one with 20 classes
  bool has(const std::string& file, Split split) const {
    const auto& wanted = split == Split::train ? train : test;
    return file == meta || file == coarse_meta || std::find(wanted.begin(), wanted.end(), file) != wanted.end();
  }
};

const std::array<Version, 4>& versions() {
  static const std::array<Version, 4> all = {{
      {"CIFAR-10 (binary)",
       "cifar-10-batches-bin",
       "cifar-10-binary.tar.gz",
       "c32a1d4ab5d03f1284b67883e8d87530",
       10,
       false,
       {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"},
       {"test_batch.bin"},
       "batches.meta.txt",
       ""},
      {"CIFAR-10 (Python)",
       "cifar-10-batches-py",
       "cifar-10-python.tar.gz",
       "c58f30108f718f92721af3b95e74349a",
       10,
       true,
       {"data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"},
       {"test_batch"},
       "batches.meta",
       "label_names"},
      {"CIFAR-100 (binary)",
       "cifar-100-binary",
       "cifar-100-binary.tar.gz",
       "03b5dce01913d631647c71ecec9e9cb8",
       100,
       false,
       {"train.bin"},
       {"test.bin"},
       "fine_label_names.txt",
       "",
       "coarse_label_names.txt",
       ""},
      {"CIFAR-100 (Python)",
       "cifar-100-python",
       "cifar-100-python.tar.gz",
       "eb9058c3a382ffc7106e4002c42a8d85",
       100,
       true,
       {"train"},
       {"test"},
       "meta",
       "fine_label_names",
       "meta",
       "coarse_label_names"},
  }};
  return all;
}

/// Over the training images; these values are widely used.
Normalisation normalisation_of(int classes) {
  if (classes == 10) return {{0.4914f, 0.4822f, 0.4465f}, {0.2470f, 0.2435f, 0.2616f}};
  return {{0.5071f, 0.4865f, 0.4409f}, {0.2673f, 0.2564f, 0.2762f}};
}

std::vector<std::string> class_names(const Version& v, const std::string* meta, const std::string& from) {
  std::vector<std::string> names;
  if (meta && v.python) {
    names = read_cifar_names(*meta, v.meta_key, from);
  } else if (meta) {
    std::string line;
    for (const char c : *meta + '\n') {
      if (c != '\n') line.push_back(c);
      else if (!line.empty()) names.push_back(std::exchange(line, {}));
    }
  } else {
    for (int c = 0; c < v.classes; ++c) names.push_back(std::to_string(c));
  }
  require(std::ssize(names) == v.classes, "data", "{}: {} class names; expected {}", from, names.size(), v.classes);
  return names;
}

using Files = std::map<std::string, std::string>;  // contents by name, without folders

std::shared_ptr<const ImageSet> build(const Version& v, Files files, Split split, const std::string& from) {
  const auto path = [&](const std::string& name) { return from + ": " + name; };
  const auto meta = files.find(v.meta);
  ImageSetInfo info{v.name, class_names(v, meta == files.end() ? nullptr : &meta->second, path(v.meta)), 32, 32,
                    normalisation_of(v.classes)};
  std::vector<CifarPiece> pieces;
  for (const auto& name : split == Split::train ? v.train : v.test) {
    const auto file = files.find(name);
    require(file != files.end(), "data", "{}: {} is missing, which {} has", from, name, v.name);
    pieces.push_back(v.python ? read_cifar_python(file->second, v.classes, path(name))
                              : read_cifar_binary(file->second, v.classes, path(name)));
    files.erase(file);  // frees the memory
  }
  return std::make_shared<Cifar>(std::move(info), std::move(pieces));
}

bool has_any(const Version& v, const std::function<bool(const std::string&)>& there) {
  const auto any = [&](const std::vector<std::string>& names) {
    return std::any_of(names.begin(), names.end(), there);
  };
  return any(v.train) || any(v.test);
}

/// The version with the requested classes.
Version chosen(Version v, bool coarse, const fs::path& from) {
  if (!coarse) return v;
  if (v.classes != 100)
    fail_usage("data", "{}: coarse classes are for CIFAR-100, and this is {}", from.string(), v.name);
  v.classes = 20, v.meta = v.coarse_meta, v.meta_key = v.coarse_key;
  return v;
}

std::shared_ptr<const ImageSet> open_folder(const fs::path& path, Split split, bool coarse) {
  for (const Version& v : versions())
    for (const fs::path& folder : {path, path / v.folder}) {
      const auto there = [&](const std::string& name) {
        std::error_code ec;
        return fs::is_regular_file(folder / name, ec);
      };
      if (!has_any(v, there)) continue;
      Files files;
      for (const auto& name : split == Split::train ? v.train : v.test)
        if (there(name)) files[name] = io::read_file(folder / name);
      for (const char* meta : {v.meta, v.coarse_meta})
        if (there(meta)) files[meta] = io::read_file(folder / meta, 1 << 20);
      return build(chosen(v, coarse, folder), std::move(files), split, folder.string());
    }
  return nullptr;
}

void compare_md5(const fs::path& path, const std::function<void(const std::string&)>& warn) {
  const auto want = published_md5(path.filename().string());
  if (!want || !warn) return;
  char found[MD5_DIGEST_STRING_LENGTH];
  if (MD5File(path.c_str(), found) == nullptr) io::fail_file(path, "read", errno);
  if (*want != found)
    warn(
        fmt::format("{} has the MD5 {}, but the published archive of that name has {}: it is not the original or was "
                    "changed: download it again",
                    path.string(), found, *want));
}

std::shared_ptr<const ImageSet> open_archive(const fs::path& path, Split split,
                                             const std::function<void(const std::string&)>& warn, bool coarse) {
  const auto base = [](const std::string& name) { return fs::path(name).filename().string(); };
  Files files;
  for (auto& [name, contents] : read_tar(path, [&](const std::string& full) {
         const auto name = base(full);
         return std::any_of(versions().begin(), versions().end(), [&](const Version& v) { return v.has(name, split); });
       }))
    files[base(name)] = std::move(contents);
  for (const Version& v : versions())
    if (has_any(v, [&](const std::string& name) { return files.contains(name); })) {
      auto set = build(chosen(v, coarse, path), std::move(files), split, path.string());
      compare_md5(path, warn);
      return set;
    }
  return nullptr;
}

}  // namespace

std::optional<std::string> published_md5(const std::string& name) {
  for (const Version& v : versions())
    if (name == v.archive) return v.md5;
  return std::nullopt;
}

Cifar::Cifar(ImageSetInfo info, std::vector<CifarPiece> pieces)
    : ImageSet(std::move(info)), pieces_(std::move(pieces)) {
  for (CifarPiece& p : pieces_) p.first = std::exchange(count_, count_ + std::ssize(p.targets));
}

const CifarPiece& Cifar::piece_of(std::int64_t i) const {
  require(i >= 0 && i < count_, "data", "image {} of {}", i, count_);
  return *std::prev(std::upper_bound(pieces_.begin(), pieces_.end(), i,
                                     [](std::int64_t at, const CifarPiece& p) { return at < p.first; }));
}

std::int32_t Cifar::target(std::int64_t i) const {
  const CifarPiece& p = piece_of(i);
  return p.targets[static_cast<std::size_t>(i - p.first)];
}

void Cifar::decode(std::int64_t i, Picture& to) const {
  const CifarPiece& p = piece_of(i);
  const auto begin = p.pixels.begin() + (i - p.first) * static_cast<std::int64_t>(kCifarBytes);
  to.height = to.width = 32;
  to.pixels.assign(begin, begin + kCifarBytes);
}

std::shared_ptr<const ImageSet> open_cifar(const fs::path& path, Split split,
                                           const std::function<void(const std::string&)>& warn, bool coarse) {
  std::error_code ec;
  if (fs::is_directory(path, ec)) return open_folder(path, split, coarse);
  return is_tar_name(path) ? open_archive(path, split, warn, coarse) : nullptr;
}

}  // namespace hpcdl::data
