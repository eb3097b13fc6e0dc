// One file of CIFAR: bytes to pixels and targets.

#include "hpcdl/core/error.h"
#include "hpcdl/data/images/cifar.h"
#include "hpcdl/data/images/pickle.h"

namespace hpcdl::data {
namespace {

constexpr std::size_t kArea = kCifarBytes / 3;

/// The files hold one plane for each colour.
void interleave(std::string_view planes, std::vector<std::uint8_t>& to) {
  const auto before = to.size();
  to.resize(before + kCifarBytes);
  std::uint8_t* out = to.data() + before;
  for (std::size_t i = 0; i < kArea; ++i, out += 3)
    for (std::size_t c = 0; c < 3; ++c) out[c] = static_cast<std::uint8_t>(planes[c * kArea + i]);
}

void add_target(CifarPiece& piece, std::int64_t target, int classes, const std::string& from) {
  require(target >= 0 && target < classes, "data",
          "{}: image {} has class {}; expected 0 to {}: damaged, or another data set", from, piece.targets.size(),
          target, classes - 1);
  piece.targets.push_back(static_cast<std::int32_t>(target));
}

}  // namespace

CifarPiece read_cifar_binary(std::string_view bytes, int classes, const std::string& from) {
  const std::size_t labels = classes == 10 ? 1 : 2, wanted = classes == 100 ? 1 : 0,
                    row = labels + kCifarBytes;  // CIFAR-100: coarse, then fine
  require(!bytes.empty() && bytes.size() % row == 0, "data",
          "{}: {} bytes are not a number of images of {} bytes: truncated? Fetch it again", from, bytes.size(), row);
  CifarPiece piece;
  for (std::size_t at = 0; at < bytes.size(); at += row) {
    add_target(piece, static_cast<unsigned char>(bytes[at + wanted]), classes, from);
    interleave(bytes.substr(at + labels, kCifarBytes), piece.pixels);
  }
  return piece;
}

CifarPiece read_cifar_python(std::string_view bytes, int classes, const std::string& from) {
  const auto root = pickle::read(bytes, from);
  const char* key = classes == 100 ? "fine_labels" : classes == 20 ? "coarse_labels" : "labels";
  const auto *data = pickle::find(*root, "data"), *labels = pickle::find(*root, key);
  const auto* array = data ? std::get_if<pickle::Array>(&data->v) : nullptr;
  const auto* list = labels ? std::get_if<pickle::List>(&labels->v) : nullptr;
  require(array && list, "data",
          "{}: expected a dictionary with an array \"data\" and a list \"{}\": not a batch of CIFAR-{}", from, key,
          classes);
  require(array->shape.size() == 2 && array->shape[0] > 0 &&
              array->shape[1] == static_cast<std::int64_t>(kCifarBytes) && array->shape[0] == std::ssize(list->items),
          "data", "{}: expected as many rows of {} bytes as there are labels, {}", from, kCifarBytes,
          list->items.size());
  CifarPiece piece;
  for (std::size_t i = 0; i < list->items.size(); ++i) {
    const auto* target = std::get_if<std::int64_t>(&list->items[i]->v);
    require(target, "data", "{}: label {} is not a number", from, i);
    add_target(piece, *target, classes, from);
    interleave(std::string_view(array->data).substr(i * kCifarBytes, kCifarBytes), piece.pixels);
  }
  return piece;
}

}  // namespace hpcdl::data
