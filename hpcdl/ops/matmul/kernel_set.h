#pragma once
// What the blocked driver (gemm.cpp) needs of an instruction set: register-tile kernels and the packing routine, as
// plain function pointers. A call covers thousands of cycles, so the indirection costs nothing and every kernel is
// compiled once, whatever epilogues exist.
//
// The unit of all layouts is the 32-bit *word*: one f32, or a run of 2 bf16 or 4 int8 along k. A packed panel of width
// w holds, word of k by word of k, w words: panel[k * w + j]. A set for tile registers (tile_set.simd.cpp) has blocks
// of `k_step` words of k instead, within which each row's words lie together in panels of A: panel[(k / k_step * w + j)
// * k_step + k % k_step]. Of operands in `parts` (split_set.simd.cpp), a block holds one after the other the words of
// each part so.

#include <cstddef>
#include <cstdint>

#include "hpcdl/core/dtype.h"
#include "hpcdl/simd/isa.h"

namespace hpcdl::gemm {

/// How products are formed. bf16, f16: both operands are rounded to that type first, products and sums are f32. Sets
/// without bf16 instructions, and every set for f16, hold the rounded values as f32.
enum class Compute : std::uint8_t { f32, bf16, f16, int8 };

/// Of activations of type d.
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
  // Lines to be fetched into L2 meanwhile, one per kPrefetchEvery words of k: `lines` of them `step` bytes apart, then
  // the column of lines next to it, 64 bytes further, for each address below `end`.
  const std::byte* ahead;
  const std::byte* ahead_end;
  std::int64_t ahead_step, ahead_wrap, ahead_count;
  // Where the finished tile will go, for which L1 makes room meanwhile, a line per kPrefetchEvery words of k: a store
  // that has to wait for its line from memory holds up the tile behind it. (Sets without `prepare`.)
  const std::byte* own;
  std::int64_t own_ld;  // bytes
  int own_lines;        // per row; 0: none
  // A finished tile, a row after the other in L1, on its way past the caches: its rows are moved one at a time, evenly
  // spread. Stored all at once they hold up the loads behind them (a loop of tiles alone, k = 256, Sapphire Rapids:
  // 0.88 of the peak, 0.95 so).
  const std::byte*
      moved;  // aligned to whole vectors, as is its destination. (Sets without `prepare`; others `meanwhile`.)
  std::byte* moved_to;
  std::int64_t moved_ld;  // bytes, of the destination
  int moved_rows, moved_vectors;
  // Other work for the vector unit, to be called behind every k_step words of k (by sets with `prepare`); may be null.
  void (*meanwhile)(void* worker);
  void* worker;
};
using TileKernel = void (*)(const TileArgs&);

/// Packed panels from a matrix whose element (j, k) lies at src + j + k * ld, or at src + j * ld + k if k_dense.
struct PackArgs {
  std::uint32_t* dst;
  int width;                  // words per k
  int cols;                   // of one panel; those from here to `width` are zero
  int panels;                 // `cols` == `width` where there are several
  std::int64_t panel_stride;  // words
  std::int64_t k;             // elements; the last word, and the last k_step words, are filled up with zeros
  const void* src;
  DType dtype;
  std::int64_t ld;  // elements
  bool k_dense;
};
using PackKernel = void (*)(const PackArgs&);

/// Few rows times `cols` columns of an unpacked B.
struct SmallArgs {
  const std::byte* x;     // rows of words, made by to_words; zeros up to a whole vector behind each
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
  static constexpr int kSmallRows = 6;  // up to here packing B does not pay
  int rows = 0;                         // tallest tile
  int vectors = 0;                      // widest tile, in vectors
  int lanes = 0;                        // words per vector
  int group = 1;                        // elements of k per word
  int parts = 1;                        // words for every `group` elements, in blocks of k_step words
  int k_step = 1;                       // words of k that tiles take at a time
  int block_words = 1024;               // words of k whose panels are used at a time
  // Of B, whose panels meet each tile of rows together; 0: every panel meets all rows of A at once.
  std::int64_t group_bytes = 0;
  std::int64_t turn_words = 0;   // words of k that such a group takes at a time; 0: all
  int pack_cost = 16;            // of a word, in multiply-adds of words
  DType in_place = DType::none;  // dtype of an A that tiles can read where it lies
  TileKernel tile_in_place[kMaxRows + 1][kMaxVectors + 1] = {};
  TileKernel tile_packed[kMaxRows + 1][kMaxVectors + 1] = {};
  PackKernel pack_a = nullptr, pack_b = nullptr;
  /// Called by a thread before tiles of another number of rows than its last, and with 0 behind its last tile.
  void (*prepare)(int rows) = nullptr;
  /// Moves rows of whole vectors, one after the other in `from`, past the caches.
  void (*move_rows)(const std::byte* from, std::byte* to, std::int64_t ld, int rows, int vectors) = nullptr;
  /// Takes over where A has fewer rows than `few_rows`, or B fewer elements than `few_elements`.
  const KernelSet* few = nullptr;
  std::int64_t few_rows = 0, few_elements = 0;
  /// A B that is kept is kept as rows of f32, not as panels: where those are larger, and meet few rows more slowly.
  bool keeps_rows = false;
  SmallKernel small = nullptr;
  void (*to_words)(std::uint32_t* dst, const void* src, DType dtype, std::int64_t k) = nullptr;
};

/// The best one there is: that for tile registers, where the active instruction set has them and they multiply such
/// operands.
template <class Isa> const KernelSet& kernel_set(Isa, Compute c);
/// The one whose panels and words are those of Dot and Words, for kernels that bring their own tiles.
template <class Isa> const KernelSet& vector_set(Isa, Compute c);
/// Of bf16 and int8, for tile registers; Avx512 only.
template <class Isa> const KernelSet& tile_set(Isa, Compute c);
/// Of f32 in parts of bf16, for tile registers; Avx512 only.
template <class Isa> const KernelSet& split_set(Isa);

}  // namespace hpcdl::gemm
