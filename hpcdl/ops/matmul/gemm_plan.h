#pragma once
// How a blocked product is divided (gemm.h describes the method): everything that determines the layout of a packed B,
// and the work of each thread. Included only by the sources of the blocked driver.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hpcdl/ops/matmul/gemm.h"

namespace hpcdl::gemm::blocked {

inline constexpr std::int64_t kWord = 4;  // bytes

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// n items in `parts` runs whose lengths differ by at most one, evenly spread; or, given `each`, in runs of that length
/// and a remainder.
struct Split {
  std::int64_t n = 0, parts = 1, each = 0;
  std::int64_t begin(std::int64_t i) const { return each ? std::min(n, i * each) : n * i / parts; }
  std::int64_t size(std::int64_t i) const { return begin(i + 1) - begin(i); }
  std::int64_t largest() const { return each ? std::min(n, each) : ceil_div(n, parts); }
};

/// How the columns are divided into panels and k into blocks: this alone determines the layout of a packed B.
struct Grid {
  Split panels;  // of vectors
  Split blocks;  // of units of words of k
  std::int64_t unit, words;

  Grid(const KernelSet& s, std::int64_t n, std::int64_t k)
      : unit(ceil_div(16, s.k_step) * s.k_step), words(ceil_div(ceil_div(k, s.group) * s.parts, s.k_step) * s.k_step) {
    const std::int64_t vectors = ceil_div(n, s.lanes);
    const std::int64_t count = std::max<std::int64_t>(1, ceil_div(vectors, s.vectors));
    panels = {vectors, count > 1 && vectors > count ? count + count % 2 : count};  // an even number: equal halves
    blocks = {ceil_div(words, unit), std::max<std::int64_t>(1, ceil_div(words, s.block_words))};
  }
  std::int64_t k_begin(std::int64_t b) const { return std::min(words, blocks.begin(b) * unit); }
  std::int64_t k_words(std::int64_t b) const { return k_begin(b + 1) - k_begin(b); }
  std::int64_t widest_block() const { return std::min(words, blocks.largest() * unit); }
};

/// The work is a grid of units, handed out one at a time; one thread computes the sums of a unit.
struct Plan {
  Grid grid;
  bool a_in_place;
  std::int64_t block_rows;                             // rows of A kept in L2
  Split m_units, n_units;                              // of tiles of rows, of panels
  std::int64_t group;                                  // panels that alternate for each tile of rows
  std::int64_t pass_rows;                              // rows of a unit whose partial sums are kept at a time
  bool keep_b;                                         // the unit's whole B stays packed: k blocks of all its panels
  std::int64_t turns;                                  // turns of a group, each with a part of the block of k
  bool slices;                                         // packs the next panel between the tiles of a panel
  std::int64_t panel_block;                            // bytes per panel and block of k
  std::int64_t a_bytes, b_bytes, c_bytes, sums_bytes;  // scratch per thread

  static constexpr std::int64_t kMaxGroup = 32;

  Plan(const KernelSet& s, const Problem& p, int threads);
};

/// `words` of a block of k, from its word `begin` on.
struct Slice {
  std::int64_t block, begin, words;
};
inline Slice whole_block(const Grid& g, std::int64_t block) { return {block, 0, g.k_words(block)}; }

inline std::int64_t first_element(const KernelSet& s, const Grid& g, const Slice& k) {
  return (g.k_begin(k.block) + k.begin) / s.parts * s.group;
}
inline std::int64_t elements(const KernelSet& s, const Grid& g, std::int64_t k, const Slice& of) {
  return std::min(k - first_element(s, g, of), of.words / s.parts * s.group);
}

}  // namespace hpcdl::gemm::blocked
