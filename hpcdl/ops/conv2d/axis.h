#pragma once
// Which inputs an output reads along one axis, and how rows of output pixels are divided. Forward and backward use the
// same code: dx gathers from dy, in one phase for each remainder of its position by the stride. Included only by
// conv2d.simd.cpp, once per instruction set: hence the anonymous namespaces.

#include <cstdint>

#include "hpcdl/ops/conv2d/conv2d.h"

namespace hpcdl::conv {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
std::int64_t most(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

/// Output u of `outputs` reads input u * step + first + k * apart for each tap k of `taps`, whose weight has the index
/// index + k * index_step. It is stored at u * out_step + out_first.
struct Axis {
  std::int64_t size = 0;  // of the input
  std::int64_t outputs = 0, step = 1;
  std::int64_t taps = 0, first = 0, apart = 1;
  std::int64_t index = 0, index_step = 1;
  std::int64_t out_step = 1, out_first = 0;

  /// The number of inputs from the first that output 0 reads to the last that output `count` - 1 reads.
  std::int64_t reach(std::int64_t count) const { return (count - 1) * step + (taps > 0 ? (taps - 1) * apart : 0) + 1; }
  /// Whether no output reads beyond the input.
  bool inside() const { return taps > 0 && outputs > 0 && first >= 0 && first + reach(outputs) <= size; }
};

Axis forward_axis(std::int64_t size, std::int64_t outputs, std::int64_t kernel, const Conv2dShape& c) {
  return {.size = size, .outputs = outputs, .step = c.stride, .taps = kernel, .first = -c.pad, .apart = c.dilation};
}

/// The positions `phase`, phase + stride, ... of a dimension of dx with `size` elements, as a function of `outputs` of
/// dy: tap r connects position q to p = (q + pad - r dilation) / stride, if that is an integer.
Axis backward_axis(std::int64_t size, std::int64_t outputs, std::int64_t kernel, const Conv2dShape& c,
                   std::int64_t phase) {
  Axis a{.size = outputs,
         .outputs = size > phase ? ceil_div(size - phase, c.stride) : 0,
         .step = 1,
         .out_step = c.stride,
         .out_first = phase};
  std::int64_t last = -1;
  for (std::int64_t r = kernel - 1; r >= 0; --r) {  // ascending in p
    if ((phase + c.pad - r * c.dilation) % c.stride != 0) continue;
    const std::int64_t p = (phase + c.pad - r * c.dilation) / c.stride;
    if (a.taps == 0) a.first = p, a.index = r;
    if (a.taps == 1) a.apart = p - a.first, a.index_step = r - last;
    last = r;
    ++a.taps;
  }
  return a;
}

/// A dimension divided into panels of whole vectors, at most `widest` vectors each; an even number of panels if there
/// are several.
struct Panels {
  std::int64_t vectors = 0, parts = 1;
  int lanes = 1;
  Panels(std::int64_t n, int lanes_, int widest) : vectors(ceil_div(n, lanes_)), lanes(lanes_) {
    const std::int64_t count = most(1, ceil_div(vectors, widest));
    parts = count > 1 && vectors > count ? count + count % 2 : count;
  }
  std::int64_t begin(std::int64_t p) const { return vectors * p / parts * lanes; }  // element
  int width(std::int64_t p) const { return static_cast<int>(begin(p + 1) - begin(p)); }
  int widest() const { return static_cast<int>(ceil_div(vectors, parts) * lanes); }
};

/// f(first, count) for k out of `n` things in `parts` runs.
std::int64_t share(std::int64_t n, std::int64_t part, std::int64_t parts) { return n * part / parts; }

std::int64_t round_up(std::int64_t bytes) {
  return ceil_div(bytes, 4096) * 4096 + 192;
}  // rows an odd number of cache lines apart: no 4K aliasing

}  // namespace
}  // namespace hpcdl::conv
