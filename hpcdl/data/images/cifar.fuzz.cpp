// Any bytes, read as a file of CIFAR in each version and as a picture, give whole images or an Error.

#include <stdexcept>

#include "hpcdl/core/error.h"
#include "hpcdl/data/images/cifar.h"
#include "hpcdl/data/images/decode_file.h"

namespace {

void check(const hpcdl::data::CifarPiece& piece, int classes) {
  if (piece.pixels.size() != piece.targets.size() * 3072) throw std::logic_error("pixels and targets differ in number");
  for (const auto t : piece.targets)
    if (t < 0 || t >= classes) throw std::logic_error("a class that does not exist");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hpcdl;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const int classes = data[0] & 1 ? 100 : 10;
  try {
    if (data[0] & 2) {
      check(data::read_cifar_binary(bytes, classes, "fuzz"), classes);
    } else if (data[0] & 4) {
      data::Picture picture;
      data::decode_image(bytes.size() > (1 << 16) ? bytes.substr(0, 1 << 16) : bytes, "fuzz", picture);
      if (picture.pixels.size() !=
          static_cast<std::size_t>(picture.height) * static_cast<std::size_t>(picture.width) * 3)
        throw std::logic_error("pixels are missing");
    } else {
      check(data::read_cifar_python(bytes, classes, "fuzz"), classes);
    }
  } catch (const Error&) {}
  return 0;
}
