#include "hpcdl/ops/matmul/gemm_plan.h"

namespace hpcdl::gemm::blocked {
namespace {

bool reads_in_place(const KernelSet& s, const Problem& p) {
  return p.a.dtype == s.in_place && !p.a.transposed && p.k % (s.group * s.k_step) == 0;
}

/// At least `wanted`, a multiple of the threads if possible, at most `most`.
std::int64_t units(std::int64_t threads, std::int64_t wanted, std::int64_t most) {
  return std::min(ceil_div(std::max(wanted, threads), threads) * threads, most);
}

}  // namespace

Plan::Plan(const KernelSet& s, const Problem& p, int threads) : grid(s, p.n, p.k) {
  constexpr std::int64_t kL2 = 512 << 10, kWholeA = 1 << 20, kPackedB = 8 << 20, kPartials = 4 << 20;
  const std::int64_t kc = std::max<std::int64_t>(grid.widest_block(), 1), lanes = s.lanes;
  a_in_place = reads_in_place(s, p);
  block_rows = std::max<std::int64_t>(s.rows, kL2 / (kc * kWord) / s.rows * s.rows);
  // All rows at once even if they slightly exceed L2: a panel of B then never leaves it, and a row in place is read in
  // order, so that loads from L3 are prefetched.
  if (a_in_place && p.m * kc * kWord <= kWholeA) block_rows = ceil_div(p.m, s.rows) * s.rows;

  const std::int64_t column_bytes = std::max<std::int64_t>(grid.words, 1) * kWord;
  const std::int64_t panel_bytes = column_bytes * s.vectors * lanes;
  const bool whole_b_fits = panel_bytes * grid.panels.parts <= kPackedB || p.packed_b;
  // The work of the busiest thread, in multiply-adds per word of k.
  const std::int64_t packing_a = a_in_place ? 0 : s.pack_cost, packing_b = p.packed_b ? 0 : s.pack_cost;
  const std::int64_t row_tiles = ceil_div(p.m, s.rows),
                     row_share = std::min(p.m, ceil_div(row_tiles, threads) * s.rows);
  const std::int64_t col_share =
      ceil_div(grid.panels.n * ceil_div(grid.panels.parts, threads), grid.panels.parts) * lanes;
  const std::int64_t by_rows = row_share * (p.n + packing_a) + p.n * packing_b;
  const std::int64_t by_cols = col_share * (p.m + packing_b) + p.m * packing_a;
  // Ties are decided by which operand every thread has to read.
  const bool rows = by_rows < by_cols || (by_rows == by_cols && p.n <= p.m && threads > 1);
  if (rows && (whole_b_fits || grid.panels.parts < threads)) {
    n_units = {grid.panels.parts, 1};
    m_units = {row_tiles, std::min(row_tiles, threads * (p.m > 16 * block_rows ? std::int64_t{4} : std::int64_t{1}))};
    // L2 holds the next block in addition to the one in use.
    if (!a_in_place) block_rows = std::max<std::int64_t>(s.rows, block_rows / 2 / s.rows * s.rows);
  } else {
    constexpr std::int64_t kColumns = 1536;  // columns of packed B that stay in L3 while all rows pass
    m_units = {row_tiles, 1};
    n_units = {grid.panels.parts, units(threads, ceil_div(p.n, kColumns), grid.panels.parts)};
  }
  const std::int64_t unit_width = n_units.largest() * s.vectors * lanes, unit_rows = m_units.largest() * s.rows;
  // The source of a packed B takes as much of L2 as the packed data.
  const std::int64_t group_bytes = p.packed_b ? s.group_bytes : s.group_bytes / 2;
  // The first group is not prefetched, which costs more the fewer rows use it.
  const std::int64_t most = std::clamp<std::int64_t>(m_units.largest() / 2, 1, kMaxGroup);
  panel_block = kc * kWord * s.vectors * lanes;
  group = std::clamp<std::int64_t>(group_bytes / panel_block, 1, most);
  turns = s.turn_words ? ceil_div(kc, s.turn_words) : 1;
  slices = group == 1 && turns == 1 && !p.packed_b;
  pass_rows = unit_rows;
  if (grid.blocks.parts > 1)
    pass_rows = std::min(unit_rows, std::max(block_rows, kPartials / (unit_width * kWord) / block_rows * block_rows));

  const bool reused = m_units.parts > 1 || pass_rows < unit_rows;
  keep_b = reused && column_bytes * unit_width <= kPackedB;
  // A B block used by several blocks of A is packed once for all of them, else one group at a time.
  const bool block_reused = pass_rows > block_rows;
  b_bytes = p.packed_b     ? 0
            : keep_b       ? column_bytes * unit_width
            : block_reused ? panel_block * std::max<std::int64_t>(n_units.largest(), 2)
                           : panel_block * (slices ? 2 : std::min(group, n_units.largest()));
  a_bytes = a_in_place ? 0 : (block_rows * kc + block_rows / s.rows * 16) * kWord;
  c_bytes = grid.blocks.parts > 1 ? pass_rows * unit_width * kWord : 0;
  const auto round = [](std::int64_t b) {
    return ceil_div(b, 4096) * 4096 + 192;
  };  // an odd number of lines apart: no 4K aliasing
  sums_bytes = round(turns > 1 ? group * s.rows * s.vectors * lanes * kWord : 0);
  a_bytes = round(a_bytes), b_bytes = round(b_bytes), c_bytes = round(c_bytes);
}

}  // namespace hpcdl::gemm::blocked
