#pragma once
// Resizes pictures.

#include "hpcdl/data/images/image_set.h"

namespace hpcdl::data {

/// A part of a picture, in pixels.
struct Box {
  int top = 0, left = 0, height = 0, width = 0;
};

/// Resizes the box of `from` to height x width: bilinear; if the picture shrinks, each output pixel is the mean,
/// weighted by a triangle, over the pixels that it covers (BILINEAR in Pillow). The box must lie inside and not be
/// empty.
void resize(const Picture& from, const Box& box, int height, int width, Picture& to);

/// The largest box of the shape height : width in the middle of a picture.
Box middle_box(int picture_height, int picture_width, int height, int width);

}  // namespace hpcdl::data
