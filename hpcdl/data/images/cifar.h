#pragma once
// CIFAR-10 and CIFAR-100 (Krizhevsky, "Learning multiple layers of features from tiny images", 2009), as published: in
// the binary and in the Python version, in the archive or unpacked.

#include <functional>
#include <optional>

#include "hpcdl/data/images/image_set.h"

namespace hpcdl::data {

constexpr std::size_t kCifarBytes = 3 * 32 * 32;  // of one image

/// The images of one file, in memory: pixels (n, 32, 32, 3).
struct CifarPiece {
  std::int64_t first = 0;
  std::vector<std::uint8_t> pixels;
  std::vector<std::int32_t> targets;
};

class Cifar : public ImageSet {
 public:
  Cifar(ImageSetInfo info, std::vector<CifarPiece> pieces);
  std::int64_t count() const override { return count_; }
  std::int32_t target(std::int64_t i) const override;
  void decode(std::int64_t i, Picture& to) const override;

 private:
  const CifarPiece& piece_of(std::int64_t i) const;
  std::vector<CifarPiece> pieces_;
  std::int64_t count_ = 0;
};

/// Null if `path`, a folder or a tar archive, holds no file of CIFAR. Throws Error if its contents are damaged or
/// incomplete. CIFAR-100 gives its 100 fine classes, or its 20 `coarse` ones.
std::shared_ptr<const ImageSet> open_cifar(const fs::path& path, Split split,
                                           const std::function<void(const std::string&)>& warn = {},
                                           bool coarse = false);

/// A published archive by its file name, and its MD5.
std::optional<std::string> published_md5(const std::string& name);

/// One file of either version, `classes` 10, 100 or, of the files of CIFAR-100, 20. Throws Error, which names it
/// `from`.
CifarPiece read_cifar_binary(std::string_view bytes, int classes, const std::string& from);
CifarPiece read_cifar_python(std::string_view bytes, int classes, const std::string& from);
/// The list of strings under a key of a Python file.
std::vector<std::string> read_cifar_names(std::string_view bytes, std::string_view key, const std::string& from);

}  // namespace hpcdl::data
