#include "hpcdl/data/images/decode_file.h"

#include <png.h>
#include <turbojpeg.h>

#include <algorithm>
#include <cctype>
#include <memory>

#include "hpcdl/core/error.h"

namespace hpcdl::data {
namespace {

constexpr std::int64_t kMostPixels = std::int64_t{1} << 27;

void set_size(const std::string& from, std::int64_t height, std::int64_t width, int channels, Picture& to) {
  require(height > 0 && width > 0 && height <= kMostPixels / width, "data",
          "{}: expected an image of 1 to 2^27 pixels, found {} x {}", from, height, width);
  to.height = static_cast<int>(height), to.width = static_cast<int>(width);
  to.pixels.resize(static_cast<std::size_t>(height * width) * static_cast<std::size_t>(channels));
}

void decode_jpeg(std::string_view bytes, const std::string& from, Picture& to) {
  thread_local const std::unique_ptr<void, decltype(&tjDestroy)> decoder(tjInitDecompress(), &tjDestroy);
  require(decoder != nullptr, "data", "no memory to decode a JPEG");
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  int width = 0, height = 0, sampling = 0, space = 0;
  // Warnings are errors, too: a truncated file gives a warning and a grey lower half.
  const auto check = [&](int rc) {
    require(rc == 0, "data", "{}: not a whole JPEG: {}", from, tjGetErrorStr2(decoder.get()));
  };
  check(tjDecompressHeader3(decoder.get(), data, bytes.size(), &width, &height, &sampling, &space));
  require(space != TJCS_CMYK && space != TJCS_YCCK, "data",
          "{}: expected a JPEG in RGB or grey, found CMYK: convert it", from);
  set_size(from, height, width, 3, to);
  check(tjDecompress2(decoder.get(), data, bytes.size(), to.pixels.data(), width, 0, height, TJPF_RGB,
                      TJFLAG_ACCURATEDCT | TJFLAG_LIMITSCANS));
}

void decode_png(std::string_view bytes, const std::string& from, Picture& to) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  const std::unique_ptr<png_image, decltype(&png_image_free)> owner(&image, &png_image_free);
  const auto check = [&](int ok) {
    require(ok && !PNG_IMAGE_FAILED(image), "data", "{}: not a whole PNG: {}", from, image.message);
  };
  check(png_image_begin_read_from_memory(&image, bytes.data(), bytes.size()));
  image.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;  // like images of 8 bits; otherwise 16 bits would be read as linear light
  // With alpha, because without it the library would lay the image over what the buffer holds.
  image.format = PNG_FORMAT_RGBA;
  set_size(from, image.height, image.width, 4, to);
  check(png_image_finish_read(&image, nullptr, to.pixels.data(), 0, nullptr));
  std::uint8_t* out = to.pixels.data();
  for (std::size_t at = 0; at < to.pixels.size(); at += 4) out = std::copy_n(to.pixels.data() + at, 3, out);
  to.pixels.resize(to.pixels.size() / 4 * 3);
}

}  // namespace

void decode_image(std::string_view bytes, const std::string& from, Picture& to) {
  if (bytes.starts_with("\xFF\xD8")) return decode_jpeg(bytes, from, to);
  if (bytes.starts_with("\x89PNG")) return decode_png(bytes, from, to);
  fail("data", "{}: neither a JPEG nor a PNG", from);
}

bool is_image_name(const fs::path& path) {
  std::string ending = path.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return ending == ".jpg" || ending == ".jpeg" || ending == ".png";
}

}  // namespace hpcdl::data
