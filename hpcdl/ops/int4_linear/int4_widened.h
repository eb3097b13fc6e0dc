#pragma once
// Many rows of x in bf16 times 4-bit weights on Hopper, which are widened to bf16 in registers: exactly, or rounded.

#include <span>
#include <string>

#include "hpcdl/ops/int4_linear/int4_linear.h"

namespace hpcdl::cuda {

/// How a product is divided: blocks of 64 row_sets rows of W by `cols` rows of x, and the blocks that divide K.
struct WidenedTile {
  int row_sets = 2, cols = 128, splits = 1;
  bool exact = false;
};
inline constexpr int kMostSplits = 8;
/// For people: "128x256/2".
std::string name_of(const WidenedTile& tile);
/// Those that there are, apart from splits.
std::span<const WidenedTile> widened_tiles(bool exact);

/// The number of blocks of such a product that the stream's GPU runs at once.
int widened_blocks(const Stream& s, const WidenedTile& tile);

/// Whether int4_linear_widened() supports the operands: Hopper, x in bf16. Those that the copy engine cannot address are
/// copied to the workspace of the stream, which must hold them: so the bits do not depend on where operands lie.
bool fits_widened(const Stream& s, View x, const int4::Weight& w);
/// The first `rows` rows of W by `tile`, the others by `rest`: so that the last multiprocessors to finish have less to
/// do.
struct WidenedPlan {
  WidenedTile tile;
  std::int64_t rows = 0;
  WidenedTile rest;
};
/// For people: "128x256/1, from row 8448 on 128x256/3".
std::string name_of(const WidenedPlan& plan, std::int64_t n);
/// The plan with the least expected time.
WidenedPlan widened_plan(const Stream& s, std::int64_t rows, std::int64_t n, std::int64_t k, bool exact = false);
/// y = activation(x W^T + bias) + residual; x is not rounded, each weight is rounded to bf16 unless the tile is exact.
void int4_linear_widened(const WidenedTile& tile, Stream& s, Tensor y, View x, const int4::Weight& w, View bias,
                         View residual, const Int4Linear::Args& a);

namespace quant4 {
struct Product;
/// Replaces what the copy engine cannot address by copies.
void make_addressable(Stream& s, View& x, int4::Weight& w);
void multiply_widened(Stream& s, const Product& o, const WidenedTile& tile);
}  // namespace quant4

}  // namespace hpcdl::cuda
