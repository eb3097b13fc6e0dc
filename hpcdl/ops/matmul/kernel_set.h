#pragma once
// What the blocked driver (gemm.cpp) needs of an instruction set: register-tile kernels and the packing routine, as plain
// function pointers. A call covers thousands of cycles, so the indirection costs nothing and every kernel is compiled once,
// whatever epilogues exist.
//
// The unit of all layouts is the 32-bit *word*: one f32, or a run of 2 bf16 or 4 int8 along k. A packed panel of width w
// holds, word of k by word of k, w words: panel[k * w + j].

#include <cstddef>
#include <cstdint>

#include "hpcdl/core/dtype.h"
#include "hpcdl/simd/isa.h"

namespace hpcdl::gemm {

/// How products are formed. bf16: both operands are rounded to bf16 first, products and sums are f32. Sets without bf16
/// instructions hold the rounded values as f32.
enum class Compute : std::uint8_t { f32, bf16, int8 };

/// C tile (rows x lanes * nv) = [cin +] A (rows x k words) * B panel.
struct TileArgs {
  const std::byte* a;         // in place: row m at a + m * lda; packed: panel of width `rows`
  std::int64_t lda;           // bytes, used in place only
  const std::byte* b;         // packed panel of width lanes * nv
  std::int64_t k;             // words
  const void* cin;            // words; null: start from 0
  std::int64_t cin_ld;        // words
  void* cout;
  std::int64_t cout_ld;
  const std::byte* prefetch;  // lines to be fetched into L2 during the tile, one per `kPrefetchEvery` words of k; may be null
  std::int64_t prefetch_step; // bytes from line to line
};
using TileKernel = void (*)(const TileArgs&);

/// One packed panel from a matrix whose element (j, k) lies at src + j + k * ld, or at src + j * ld + k if k_dense.
struct PackArgs {
  std::uint32_t* dst;
  int width;          // words per k; columns from `cols` on are zero
  int cols;
  std::int64_t k;     // elements; the last word is filled up with zeros
  const void* src;
  DType dtype;
  std::int64_t ld;    // elements
  bool k_dense;
};
using PackKernel = void (*)(const PackArgs&);

struct KernelSet {
  static constexpr int kMaxRows = 14, kMaxVectors = 4;
  int rows = 0;       // tallest tile
  int vectors = 0;    // widest tile, in vectors
  int lanes = 0;      // words per vector
  int group = 1;      // elements of k per word
  DType in_place = DType::none;  // dtype of an A that tiles can read where it lies
  TileKernel tile_in_place[kMaxRows + 1][kMaxVectors + 1] = {};
  TileKernel tile_packed[kMaxRows + 1][kMaxVectors + 1] = {};
  PackKernel pack = nullptr;
};

template <class Isa> const KernelSet& kernel_set(Isa, Compute c);

}  // namespace hpcdl::gemm
