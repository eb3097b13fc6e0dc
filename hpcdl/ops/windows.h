#pragma once
// The windows of pooling over images (N, H, W, C), one axis at a time, on host and device. Pixels are rows of C
// channels.

#include "hpcdl/core/device_macros.h"
#include "hpcdl/ops/require.h"

namespace hpcdl {

/// Windows of equal size at equal distances. stride 0: the kernel size.
struct PoolArgs {
  int kernel = 2, stride = 0, pad = 0;
};

/// The inputs along an axis that each of `out` outputs covers, out of `in`. kernel 0: bins that divide the inputs as
/// evenly as integers allow, [floor(o * in / out), ceil((o + 1) * in / out)), as in torch's adaptive pools; they
/// overlap if `out` does not divide `in`.
struct WindowAxis {
  int in = 0, out = 0, kernel = 0, stride = 0, pad = 0;

  [[gnu::always_inline]] HPCDL_HOST_DEVICE int begin(int o) const {
    if (kernel == 0) return o * in / out;
    const int at = o * stride - pad;
    return at > 0 ? at : 0;
  }
  [[gnu::always_inline]] HPCDL_HOST_DEVICE int end(int o) const {
    if (kernel == 0) return ((o + 1) * in + out - 1) / out;
    const int at = o * stride - pad + kernel;
    return at < in ? at : in;
  }
  /// The outputs whose windows contain input i: [first(i), last(i)).
  [[gnu::always_inline]] HPCDL_HOST_DEVICE int first(int i) const {
    if (kernel == 0) return i * out / in;
    return i + pad < kernel ? 0 : (i + pad - kernel) / stride + 1;
  }
  [[gnu::always_inline]] HPCDL_HOST_DEVICE int last(int i) const {
    if (kernel == 0) return ((i + 1) * out + in - 1) / in;
    const int at = (i + pad) / stride + 1;
    return at < out ? at : out;
  }
  /// The number of inputs in the largest window.
  int widest() const {
    if (kernel != 0) return kernel;
    int most = 0;
    for (int o = 0; o < out; ++o) most = end(o) - begin(o) > most ? end(o) - begin(o) : most;
    return most;
  }
};

/// Both axes of an image, and the number of images.
struct Windows {
  WindowAxis h, w;
  std::int64_t images = 0, channels = 0;
};

namespace detail {

/// The maximum side length, chosen such that the product of two sides fits 32 bits.
inline constexpr int kMostPixels = 1 << 15;

inline void require_image(std::string_view op, const Spec& x) {
  require_float(op, x);
  require(x.shape.rank() == 4 && x[1] > 0 && x[2] > 0 && x[3] > 0, op, "needs images (N, H, W, C), got {}",
          to_string(x));
  require(x[1] < kMostPixels && x[2] < kMostPixels, op, "images must be smaller than {} pixels a side, got {}",
          kMostPixels, to_string(x));
}

inline Windows windows(std::string_view op, const Shape& x, const PoolArgs& a) {
  const int stride = a.stride ? a.stride : a.kernel;
  require(a.kernel > 0 && stride > 0, op, "kernel and stride must be positive, got {} and {}", a.kernel, a.stride);
  require(a.pad >= 0 && 2 * a.pad <= a.kernel, op, "the padding must be at most half of the kernel ({}), got {}",
          a.kernel, a.pad);
  const auto axis = [&](std::int64_t side) {
    const int in = static_cast<int>(side);
    require(in + 2 * a.pad >= a.kernel, op, "a kernel of {} does not fit into {} pixels, padded by {}", a.kernel, in,
            a.pad);
    return WindowAxis{in, (in + 2 * a.pad - a.kernel) / stride + 1, a.kernel, stride, a.pad};
  };
  return {axis(x[1]), axis(x[2]), x[0], x[3]};
}

inline Windows bins(std::string_view op, const Shape& x, int height, int width) {
  require(height > 0 && width > 0 && height < kMostPixels && width < kMostPixels, op,
          "the output must have pixels, fewer than {} a side, got {} x {}", kMostPixels, height, width);
  return {{.in = static_cast<int>(x[1]), .out = height}, {.in = static_cast<int>(x[2]), .out = width}, x[0], x[3]};
}

inline Spec pooled(const Spec& x, const Windows& w) { return {{w.images, w.h.out, w.w.out, w.channels}, x.dtype}; }

}  // namespace detail

}  // namespace hpcdl
