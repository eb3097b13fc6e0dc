#pragma once
// Convolutions of images whose channels take less than 16 bytes, as read by a network's first layer, on tensor cores
// (mma.sync) with f32 sums: 16-bit types, and gradients of f32 in three bf16 parts (f32_parts.h).
//
// The terms that an output reads from one row of an image, KW x I of them, are adjacent in memory. So rows of images
// are copied to shared memory unchanged, with the zeros around them, and products read pairs of terms there; nothing is
// unrolled. If a row has an odd number of terms, the second of its last pair is masked. K counts pairs: those of a row
// of the kernel, then those of the next.

#include <algorithm>

#include "hpcdl/ops/conv2d/device_gather.h"

namespace hpcdl::cuda {

/// Two terms of one row of the kernel.
struct TermPair {
  int at;         // offset in words from the start of a pixel's window
  unsigned mask;  // mask of the word
  int term;       // the first of the two, in the order of the filters
};

/// The rows of an image in shared memory, in words of two elements, that `rows` rows of y read.
struct ImageRows {
  int height = 0, elements = 0;              // rows per image; elements per row
  int out_rows = 0, out_cols = 0, rows = 0;  // of y; per tile
  int stride = 1, pad = 0, step = 0,
      lead = 0;  // stride and padding of rows; elements between windows, and zeros before a row
  int kernel_rows = 0, row_terms = 0;
  int words = 0, lines = 0, copies = 1;  // words per line; lines in shared memory; 2 copies: the second is shifted by
                                         // one element, for windows that begin with an odd one
  Divisor line, out_col, pairs,
      tiles;  // words per line; pixels per row of y; pairs per row of the kernel; tiles per image

  ImageRows() = default;
  ImageRows(const Conv2dShape& g, int rows_of_tile)
      : height(narrow_int(g.h)),
        elements(narrow_int(g.w * g.i)),
        out_rows(narrow_int(g.oh)),
        out_cols(narrow_int(g.ow)),
        rows(rows_of_tile),
        stride(narrow_int(g.stride)),
        pad(narrow_int(g.pad)),
        step(narrow_int(g.stride * g.i)),
        lead(narrow_int(g.pad * g.i)),
        kernel_rows(narrow_int(g.kh)),
        row_terms(narrow_int(g.kw * g.i)),
        words((out_cols - 1) * step / 2 + (row_terms + 1) / 2),
        lines((rows - 1) * stride + kernel_rows),
        copies(step % 2 == 0 ? 1 : 2),
        line(words),
        out_col(out_cols),
        pairs((row_terms + 1) / 2),
        tiles((out_rows + rows - 1) / rows) {}

  /// The contents of word i of a tile that begins with row 0 of y: two elements of a row, either of which may be
  /// outside.
  struct Place {
    int row, element;
  };
  HPCDL_HOST_DEVICE Place place(int i) const {
    const int of_copy = lines * words, copy = i >= of_copy ? 1 : 0, in = i - copy * of_copy, at = line(in);
    return {at - pad, (in - at * words) * 2 + copy - lead};
  }
  HPCDL_HOST_DEVICE bool inside(int row, int element) const {
    return static_cast<unsigned>(row) < static_cast<unsigned>(height) &&
           static_cast<unsigned>(element) < static_cast<unsigned>(elements);
  }
  HPCDL_HOST_DEVICE int all_words() const { return copies * lines * words; }
  HPCDL_HOST_DEVICE int all_pairs() const { return kernel_rows * pairs.divisor(); }
  HPCDL_HOST_DEVICE TermPair pair(int p) const {
    if (p >= all_pairs()) return {0, 0, -1};
    const int row = pairs(p), in = p - row * pairs.divisor();
    return {row * words + in, 2 * in + 1 < row_terms ? 0xffffffffu : 0xffffu, row * row_terms + 2 * in};
  }
  /// The word at which the window of pixel m of a tile begins.
  HPCDL_HOST_DEVICE int window(int m) const {
    const int row = out_col(m), first = (m - row * out_cols) * step;
    return row * stride * words + first / 2 + first % 2 * (lines * words);
  }
  /// Pixels of the tile that begins with row `row0` of y.
  HPCDL_HOST_DEVICE int pixels(int row0) const { return (out_rows - row0 < rows ? out_rows - row0 : rows) * out_cols; }
};

/// The number of rows of y per tile that leaves the fewest of `slots` blocks idle, when blocks process `unit` pixels
/// per iteration and have `room` bytes; 0 if one row is too many. bytes_of(rows): shared memory of a block.
template <class F> int rows_of_tiles(const Conv2dShape& g, int slots, int unit, std::int64_t room, F&& bytes_of) {
  int best = 0;
  double most = 0;
  for (int rows = 1; rows <= std::min<std::int64_t>(g.oh, 64); ++rows) {
    if (bytes_of(rows) > room) break;
    const std::int64_t tiles = g.n * ((g.oh + rows - 1) / rows), turns = (rows * g.ow + unit - 1) / unit;
    const double useful =
        static_cast<double>(g.pixels()) / static_cast<double>((tiles + slots - 1) / slots * slots * turns * unit);
    if (useful >= most) best = rows, most = useful;
  }
  return best;
}

/// The taps along one axis that reach groups of stride x stride pixels of x: group u reads pixels u + low, u + low + 1,
/// ... of dy, and tap number a uses row `kernel_row(phase, a)` of the kernel, if there is one, for the pixel `phase` of
/// the group.
struct GroupTaps {
  int low = 0, count = 0, stride = 1, pad = 0;

  GroupTaps() = default;
  GroupTaps(const Conv2dShape& g, std::int64_t kernel) : stride(narrow_int(g.stride)), pad(narrow_int(g.pad)) {
    const int before = pad - narrow_int(kernel) + 1;  // its quotient by the stride is rounded up
    low = before >= 0 ? (before + stride - 1) / stride : -(-before / stride);
    count = (stride - 1 + pad) / stride - low + 1;
  }
  HPCDL_HOST_DEVICE int kernel_row(int phase, int a) const { return phase + pad - stride * (low + a); }
};

}  // namespace hpcdl::cuda
