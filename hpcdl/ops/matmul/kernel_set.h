#pragma once
// The interface of an instruction set for the blocked driver (gemm.cpp): register-tile kernels and the packing routine,
// as plain function pointers. A call takes thousands of cycles, so the indirection costs nothing and every kernel is
// compiled once, independently of the epilogues.
//
// The unit of all layouts is the 32-bit *word*: one f32, or a run of 2 bf16 or 4 int8 along k. A packed panel of width
// w holds, for each word of k in order, w words: panel[k * w + j]. A set for tile registers (tile_set.simd.cpp) instead
// has blocks of `k_step` words of k, within which each row's words are adjacent in panels of A: panel[(k / k_step * w +
// j) * k_step + k % k_step]. For operands in `parts` (split_set.simd.cpp), a block holds the words of each part in this
// layout, one part after the other.

#include <cstddef>
#include <cstdint>

#include "hpcdl/dtype.h"
#include "hpcdl/simd/isa.h"

namespace hpcdl::gemm {

/// How products are computed. bf16, f16: both operands are rounded to that type first, products and sums are f32. Sets
/// without bf16 instructions, and every set for f16, hold the rounded values as f32.
enum class Compute : std::uint8_t { f32, bf16, f16, int8 };

/// For activations of type d.
constexpr Compute compute_of(DType d) {
  return d == DType::bf16 ? Compute::bf16 : d == DType::f16 ? Compute::f16 : Compute::f32;
}

inline constexpr int kPrefetchEvery = 4;

/// C tile (rows x lanes * nv) = [cin +] A (rows x k words) * B panel.
struct TileArgs {
  const std::byte* a;   // in place: row m at a + m * lda; packed: panel of width `rows`
  std::int64_t lda;     // bytes, used in place only
  const std::byte* b;   // packed panel of width lanes * nv
  std::int64_t k;       // words
  int rows;             // of this tile
  const void* cin;      // words; null: start from 0
  std::int64_t cin_ld;  // words
  void* cout;
  std::int64_t cout_ld;
  // Lines to be prefetched into L2 meanwhile, one per kPrefetchEvery words of k: `lines` of them `step` bytes apart,
  // then the next column of lines, 64 bytes further, for each address below `end`.
  const std::byte* ahead;
  const std::byte* ahead_end;
  std::int64_t ahead_step, ahead_wrap, ahead_count;
  // The destination of the finished tile, which is prefetched into L1 meanwhile, a line per kPrefetchEvery words of k:
  // a store that waits for its line from memory delays the next tile. (Sets without `prepare`.)
  const std::byte* own;
  std::int64_t own_ld;  // bytes
  int own_lines;        // per row; 0: none
  // A finished tile, stored row by row in L1, to be moved with non-temporal stores: its rows are moved one at a time,
  // evenly spread. Stored all at once they delay the loads after them (a loop of tiles alone, k = 256, Sapphire Rapids:
  // 0.88 of the peak, spread 0.95).
  const std::byte* moved;  // aligned to whole vectors, as is its destination (sets without `prepare`; else `meanwhile`)
  std::byte* moved_to;
  std::int64_t moved_ld;  // bytes, in the destination
  int moved_rows, moved_vectors;
  // Other work for the vector unit, to be called after every k_step words of k (by sets with `prepare`); may be null.
  void (*meanwhile)(void* worker);
  void* worker;
};
using TileKernel = void (*)(const TileArgs&);

/// Packed panels from a matrix whose element (j, k) is at src + j + k * ld, or at src + j * ld + k if k_dense.
struct PackArgs {
  std::uint32_t* dst;
  int width;                  // words per k
  int cols;                   // of one panel; columns from here to `width` are zero
  int panels;                 // `cols` == `width` if there are several
  std::int64_t panel_stride;  // words
  std::int64_t k;             // elements; the last word, and the last k_step words, are padded with zeros
  const void* src;
  DType dtype;
  std::int64_t ld;  // elements
  bool k_dense;
};
using PackKernel = void (*)(const PackArgs&);

/// Few rows times `cols` columns of an unpacked B.
struct SmallArgs {
  const std::byte* x;     // rows of words, made by to_words, each padded with zeros to a whole vector
  std::int64_t x_stride;  // bytes
  int rows;
  const void* b;  // the first of the columns
  DType dtype;
  std::int64_t ld;  // elements
  bool k_dense;     // as in PackArgs
  std::int64_t k;   // elements
  int cols;
  void* out;  // rows x cols words
  std::int64_t out_ld;
};
using SmallKernel = void (*)(const SmallArgs&);

struct KernelSet {
  static constexpr int kMaxRows = 32, kMaxVectors = 3;
  static constexpr int kSmallRows = 6;  // up to this many rows packing B does not pay
  int rows = 0;                         // tallest tile
  int vectors = 0;                      // widest tile, in vectors
  int lanes = 0;                        // words per vector
  int group = 1;                        // elements of k per word
  int parts = 1;                        // words per `group` elements, in blocks of k_step words
  int k_step = 1;                       // words of k that tiles take at a time
  int block_words = 1024;               // words of k whose panels are used at a time
  // Bytes of a group of B's panels that are used together for each tile of rows; 0: every panel is used for all rows of
  // A at once.
  std::int64_t group_bytes = 0;
  std::int64_t turn_words = 0;   // words of k that such a group processes at a time; 0: all
  int pack_cost = 16;            // per word, in multiply-adds of words
  DType in_place = DType::none;  // dtype of an A that tiles can read in place
  TileKernel tile_in_place[kMaxRows + 1][kMaxVectors + 1] = {};
  TileKernel tile_packed[kMaxRows + 1][kMaxVectors + 1] = {};
  PackKernel pack_a = nullptr, pack_b = nullptr;
  /// Called by a thread before tiles with a different number of rows than its last, and with 0 after its last tile.
  void (*prepare)(int rows) = nullptr;
  /// Moves rows of whole vectors, stored consecutively in `from`, with non-temporal stores.
  void (*move_rows)(const std::byte* from, std::byte* to, std::int64_t ld, int rows, int vectors) = nullptr;
  /// Used instead of this set if A has fewer rows than `few_rows`, or B fewer elements than `few_elements`.
  const KernelSet* few = nullptr;
  std::int64_t few_rows = 0, few_elements = 0;
  /// A packed B is kept as rows of f32, not as panels: if panels are larger, and slower for few rows.
  bool keeps_rows = false;
  SmallKernel small = nullptr;
  void (*to_words)(std::uint32_t* dst, const void* src, DType dtype, std::int64_t k) = nullptr;
};

/// The best available set: that for tile registers, if the active instruction set has them and they can multiply such
/// operands.
template <class Isa> const KernelSet& kernel_set(Isa, Compute c);
/// The set whose panels and words are those of Dot and Words, for kernels that bring their own tiles.
template <class Isa> const KernelSet& vector_set(Isa, Compute c);
/// For bf16 and int8 on tile registers; Avx512 only.
template <class Isa> const KernelSet& tile_set(Isa, Compute c);
/// For f32 in parts of bf16 on tile registers; Avx512 only.
template <class Isa> const KernelSet& split_set(Isa);

}  // namespace hpcdl::gemm
