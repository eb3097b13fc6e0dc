#pragma once
// What the kernels of images of few channels share (few_channels.h).

#include "hpcdl/ops/conv2d/few_channels.h"
#include "hpcdl/ops/conv2d/own_kernel.h"

namespace hpcdl::cuda {

/// The rows for the tile of image `image` that begins with row `row0` of y, by all threads.
template <int kThreads> __device__ void bring_rows(const ImageRows& r, const void* images, int image, int row0, unsigned* to) {
  const auto* from = static_cast<const unsigned short*>(images) + std::int64_t{image} * r.height * r.elements;
#pragma unroll 8
  for (int i = static_cast<int>(threadIdx.x); i < r.all_words(); i += kThreads) {
    const ImageRows::Place place = r.place(i);
    const int row = place.row + row0 * r.stride, at = row * r.elements + place.element;
    const unsigned low = r.inside(row, place.element) ? from[at] : 0u, high = r.inside(row, place.element + 1) ? from[at + 1] : 0u;
    to[i] = low | high << 16;
  }
}

/// Channels that fill no 16 bytes of 16-bit elements.
inline bool of_few_channels(const Conv2dShape& g) { return g.i < 8 && g.dilation == 1 && g.o % 8 == 0 && g.pixels() > 0 && g.h * g.w * g.i < 1 << 30; }

}  // namespace hpcdl::cuda
