#pragma once
// JPEG and PNG, by libjpeg-turbo and libpng.

#include <string_view>

#include "hpcdl/data/images/image_set.h"

namespace hpcdl::data {

/// The image as 8-bit RGB; grey becomes three equal channels, transparency is dropped. `from` names the file in errors.
/// Throws Error if it is damaged, truncated, neither of the two, or has more than 2^27 pixels.
void decode_image(std::string_view bytes, const std::string& from, Picture& to);

/// True for .jpg, .jpeg and .png, in upper or lower case.
bool is_image_name(const fs::path& path);

}  // namespace hpcdl::data
