#pragma once
// One thread's share of a blocked product. Included only by the sources of the blocked driver.

#include <algorithm>
#include <cstring>

#include "hpcdl/ops/matmul/gemm_plan.h"

namespace hpcdl::gemm::blocked {

inline const std::byte* element(const Operand& o, std::int64_t outer, std::int64_t inner, bool outer_is_row) {
  const std::int64_t i = outer_is_row ? outer * o.ld + inner : inner * o.ld + outer;
  return static_cast<const std::byte*>(o.data) + i * dtype_bytes(o.dtype);
}

/// `dst`: destination of the panel's block.
inline void pack_panel(const KernelSet& s, const Grid& g, const Operand& b, std::int64_t n, std::int64_t k,
                       std::int64_t panel, const Slice& of, std::byte* dst) {
  const std::int64_t col = g.panels.begin(panel) * s.lanes, width = g.panels.size(panel) * s.lanes;
  s.pack_b({.dst = reinterpret_cast<std::uint32_t*>(dst) + of.begin * width,
            .width = static_cast<int>(width),
            .cols = static_cast<int>(std::min(width, n - col)),
            .panels = 1,
            .panel_stride = 0,
            .k = elements(s, g, k, of),
            .src = element(b, col, first_element(s, g, of), b.transposed),
            .dtype = b.dtype,
            .ld = b.ld,
            .k_dense = b.transposed});
}

/// One thread's share of a multiplication.
class Worker {
 public:
  Worker(const KernelSet& set, const Problem& problem, const Plan& plan, const Finish& finish, std::byte* scratch)
      : s(set),
        p(problem),
        plan_(plan),
        g(plan.grid),
        f(finish),
        past_caches_(finish.cold &&
                     (reinterpret_cast<std::uintptr_t>(finish.d) | static_cast<std::uintptr_t>(finish.d_ld)) % 64 == 0),
        a_(scratch),
        b_(a_ + plan.a_bytes),
        c_(b_ + plan.b_bytes),
        sums_(reinterpret_cast<std::uint32_t*>(c_ + plan.c_bytes)) {}
  ~Worker() {
    if (prepared_) s.prepare(0);
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void unit(std::int64_t mu, std::int64_t nu) {
    panel0_ = plan_.n_units.begin(nu);
    panels_ = plan_.n_units.size(nu);
    if (kept_unit_ != nu) kept_unit_ = -1;
    const std::int64_t end = std::min(p.m, plan_.m_units.begin(mu + 1) * s.rows);
    for (pass_begin_ = plan_.m_units.begin(mu) * s.rows; pass_begin_ < end; pass_begin_ += pass_size_) {
      pass_size_ = std::min(end - pass_begin_, plan_.pass_rows);
      home_ = 0;
      for (std::int64_t block = 0; block < g.blocks.parts; ++block) pass(block);
      if (plan_.keep_b) kept_unit_ = nu;
    }
    finish(waiting_.rows);
    move(moved_.rows);
  }

 private:
  /// A block of k of a block of rows of the pass.
  struct Rows {
    std::int64_t block, row;
    Split tiles, k;  // k: steps, in turns of a group
  };
  /// Memory that the next group will read, as `columns` columns of 64-byte lines, with `step` bytes between lines.
  struct Ahead {
    const std::byte* base = nullptr;
    std::int64_t lines = 0, step = 0, columns = 0;
  };

  /// A panel of B that is packed while the preceding one is in use.
  struct Next {
    std::byte* dst = nullptr;
    std::int64_t block = 0, panel = 0;
  };

  void pass(std::int64_t block) {
    const Split row_blocks{ceil_div(pass_size_, s.rows), ceil_div(pass_size_, plan_.block_rows)};
    const bool single = row_blocks.parts == 1 && !plan_.keep_b;
    for (std::int64_t i = 0; i < row_blocks.parts; ++i) {
      const std::int64_t row = std::min(pass_size_, row_blocks.begin(i) * s.rows);
      const std::int64_t rows = std::min(pass_size_, row_blocks.begin(i + 1) * s.rows) - row;
      const Split tiles{rows, ceil_div(rows, s.rows), plan_.a_in_place ? 0 : s.rows};
      const Rows w{block, row, tiles, {g.k_words(block) / s.k_step, plan_.turns}};
      if (!plan_.a_in_place) pack_a(pass_begin_ + row, tiles, block);
      const bool fresh = i == 0 && kept_unit_ < 0 && !p.packed_b;
      for (std::int64_t j = 0, end; j < panels_; j = end) {
        end = std::min(panels_, j + plan_.group);
        take_group(block, j, end, row, single);
        for (std::int64_t q = j; fresh && !next_.dst && q < end; ++q)
          pack_panel(s, g, p.b, p.n, p.k, panel0_ + q, whole_block(g, block), const_cast<std::byte*>(group_[q - j].b));
        next_ = fresh && plan_.slices ? next_panel(block, j, row_blocks.parts == 1, single) : Next{};
        Ahead ahead;
        if (!fresh && !plan_.a_in_place && i + 1 < row_blocks.parts)
          ahead = next_rows(pass_begin_ + row + rows, rows, block, j, end);
        else if (end < panels_) ahead = next_group(block, end, std::min(panels_, end + plan_.group), fresh);
        if (next_.dst) pass_panel(w);
        else pass_group(w, end - j, ahead);
      }
    }
  }

  /// The panel after panel j of a block; after the last, the first of the next block, if `through`.
  Next next_panel(std::int64_t block, std::int64_t j, bool through, bool single) {
    const bool same = j + 1 < panels_;
    if (!same && (!through || block + 1 == g.blocks.parts)) return {};
    const std::int64_t b = same ? block : block + 1, next = same ? j + 1 : 0;
    if (single) home_ ^= 1;
    return {const_cast<std::byte*>(panel(b, next, single ? next : 0)), b, next};
  }

  /// All tiles of rows use the single panel of a group. After each of them a slice of the next panel is packed, whose
  /// lines the tile before it has prefetched: a whole panel would not stay in L2 if its rows are a multiple of 4 KB
  /// apart, and lines that arrive all at once evict those of B from L1.
  void pass_panel(const Rows& w) {
    // Minimum words per slice: 8 gain nothing over 16, 32 lose the benefit of slices when k is 256.
    constexpr std::int64_t kSlice = 16;
    const std::int64_t words = g.k_words(next_.block), step = ceil_div(kSlice, s.k_step) * s.k_step;
    const std::int64_t most = w.k.size(0) * s.k_step / kPrefetchEvery,
                       last = std::max<std::int64_t>(w.tiles.parts - 1, 1);
    const Split slices{words, last, ceil_div(ceil_div(words, last), step) * step};
    const auto slice = [&](std::int64_t i) { return Slice{next_.block, slices.begin(i), slices.size(i)}; };
    const auto pack = [&](const Slice& k) {
      if (k.words > 0) pack_panel(s, g, p.b, p.n, p.k, panel0_ + next_.panel, k, next_.dst);
    };
    for (std::int64_t t = 0; t < w.tiles.parts; ++t) {
      const Slice fetched = slice(t);
      const Ahead ahead = fetched.words > 0 ? source(next_.panel, next_.panel + 1, fetched) : Ahead{};
      one_tile(w, t, 0, 0, ahead, 0, std::min(most, ahead.lines * ahead.columns));
      if (t > 0) pack(slice(t - 1));
    }
    if (w.tiles.parts == 1) pack(slice(0));
  }

  /// Every tile of rows uses all panels of the group before the next tile does: rows of C are then written in long
  /// runs, which the hardware prefetches. A group processes k in turns if a tile's rows would otherwise not stay in L1
  /// from panel to panel; meanwhile sums stay in L2.
  void pass_group(const Rows& w, std::int64_t panels, const Ahead& ahead) {
    const std::int64_t calls = w.tiles.parts * w.k.parts * panels, lines = ahead.lines * ahead.columns;
    const std::int64_t share = std::min(w.k.size(0) * s.k_step / kPrefetchEvery, ceil_div(lines, calls));
    std::int64_t line = 0;
    for (std::int64_t t = 0; t < w.tiles.parts; ++t)
      for (std::int64_t turn = 0; turn < w.k.parts; ++turn)
        for (std::int64_t q = 0; q < panels; ++q, line += share)
          one_tile(w, t, turn, q, ahead, line, std::min(share, lines - line));
  }

  /// A panel of B in use, and the columns of C computed from it.
  struct Panel {
    const std::byte* b;
    std::int64_t vectors, col, cols;  // cols: without the padding of the panel
    std::uint32_t* partial;           // sums of the current row block
  };

  /// Panels j to `end` of the unit. `single`: they replace the preceding group in memory.
  void take_group(std::int64_t block, std::int64_t j, std::int64_t end, std::int64_t row, bool single) {
    const std::int64_t first = g.panels.begin(panel0_) * s.lanes;
    for (std::int64_t q = j; q < end; ++q) {
      const std::int64_t vectors = g.panels.size(panel0_ + q), col = g.panels.begin(panel0_ + q) * s.lanes;
      group_[q - j] = {
          .b = panel(block, q, single ? j : 0),
          .vectors = vectors,
          .col = col,
          .cols = std::min(vectors * s.lanes, p.n - col),
          .partial = reinterpret_cast<std::uint32_t*>(c_) + (col - first) * pass_size_ + row * vectors * s.lanes};
    }
  }

  /// One line more than the panel holds: panels a multiple of 4 KB apart would compete for the same sets of L1.
  std::int64_t a_panel_words(std::int64_t block) const { return s.rows * g.k_words(block) + 16; }

  /// The start of the block of k in A, from `row` on.
  const std::byte* rows_of_a(std::int64_t row, std::int64_t block) const {
    return element(p.a, row, first_element(s, g, whole_block(g, block)), !p.a.transposed);
  }

  void pack_a(std::int64_t row, const Split& tiles, std::int64_t block) {
    const std::int64_t whole = tiles.n / s.rows, rest = tiles.n % s.rows;
    PackArgs args{.dst = reinterpret_cast<std::uint32_t*>(a_),
                  .width = s.rows,
                  .cols = s.rows,
                  .panels = static_cast<int>(whole),
                  .panel_stride = a_panel_words(block),
                  .k = elements(s, g, p.k, whole_block(g, block)),
                  .src = rows_of_a(row, block),
                  .dtype = p.a.dtype,
                  .ld = p.a.ld,
                  .k_dense = !p.a.transposed};
    if (whole) s.pack_a(args);
    if (!rest) return;
    args.dst += whole * args.panel_stride;
    args.src = rows_of_a(row + whole * s.rows, block);
    args.width = args.cols = static_cast<int>(rest);
    args.panels = 1;
    s.pack_a(args);
  }

  /// The part of the next block of A to be packed that panels j to `end` prefetch.
  Ahead next_rows(std::int64_t row, std::int64_t rows, std::int64_t block, std::int64_t j, std::int64_t end) const {
    const std::int64_t size = dtype_bytes(p.a.dtype), k = elements(s, g, p.k, whole_block(g, block));
    const std::int64_t dense = p.a.transposed ? rows : k, lines = p.a.transposed ? k : rows;
    const Split columns{ceil_div(dense * size, 64), panels_};
    const auto* base = rows_of_a(row, block);
    return {base + columns.begin(j) * 64, lines, p.a.ld * size, columns.begin(end) - columns.begin(j)};
  }
  Ahead next_group(std::int64_t block, std::int64_t j, std::int64_t end, bool fresh) const {
    if (fresh) return source(j, end, whole_block(g, block));
    const std::int64_t vectors = g.panels.begin(panel0_ + end) - g.panels.begin(panel0_ + j);
    return {panel(block, j, 0), vectors * s.lanes * g.k_words(block) * kWord / 64, 64, 1};
  }
  /// The source from which panels j to `end` are packed.
  Ahead source(std::int64_t j, std::int64_t end, const Slice& of) const {
    const std::int64_t col = g.panels.begin(panel0_ + j) * s.lanes,
                       width = g.panels.begin(panel0_ + end) * s.lanes - col;
    const std::int64_t size = dtype_bytes(p.b.dtype), k = elements(s, g, p.k, of);
    const auto* base = element(p.b, col, first_element(s, g, of), p.b.transposed);
    const std::int64_t lines = p.b.transposed ? width : k, dense = p.b.transposed ? k : width;
    return {base, lines, p.b.ld * size, (dense * size + 63) / 64};
  }

  /// The address of panel j of the unit if panel `first` is at the beginning of what this worker packed; if panels
  /// alternate between two places, the current one of them.
  const std::byte* panel(std::int64_t block, std::int64_t j, std::int64_t first) const {
    const auto column = [this](std::int64_t panel) { return g.panels.begin(panel0_ + panel) * s.lanes; };
    const std::int64_t kw = g.k_words(block);
    if (p.packed_b) return p.packed_b + (g.k_begin(block) * g.panels.n * s.lanes + column(j) * kw) * kWord;
    const std::int64_t whole = plan_.keep_b ? g.k_begin(block) * (column(panels_) - column(0)) : 0;
    return b_ + home_ * plan_.panel_block + (whole + (column(j) - column(first)) * kw) * kWord;
  }

  /// Runs the epilogue of the next `rows` rows of the waiting tile.
  void finish(int rows) {
    rows = std::min(rows, waiting_.rows);
    if (rows <= 0) return;
    f.apply(f.epilogue, waiting_.sums, waiting_.ld, waiting_.row, waiting_.col, rows, waiting_.cols);
    waiting_.sums += rows * waiting_.ld, waiting_.row += rows, waiting_.rows -= rows;
  }
  /// Moves the next rows of the tile that is being stored with non-temporal stores.
  void move(int rows) {
    rows = std::min(rows, moved_.rows);
    if (rows <= 0) return;
    s.move_rows(moved_.from, moved_.to, f.d_ld, rows, moved_.vectors);
    moved_.from += rows * moved_.vectors * s.lanes * kWord, moved_.to += rows * f.d_ld, moved_.rows -= rows;
  }
  static void slice_of_last(void* worker) {
    auto& w = *static_cast<Worker*>(worker);
    w.finish(w.slice_);
    w.move(w.slice_);
  }

  /// One turn of tile t with panel q of the group; it prefetches `fetches` of the lines ahead, from the given one on.
  void one_tile(const Rows& w, std::int64_t t, std::int64_t turn, std::int64_t q, const Ahead& ahead, std::int64_t line,
                std::int64_t fetches) {
    const Panel& b = group_[q];
    const std::int64_t k0 = w.k.begin(turn) * s.k_step, kw = w.k.size(turn) * s.k_step, width = b.vectors * s.lanes;
    const bool last_turn = turn + 1 == w.k.parts, last = last_turn && w.block + 1 == g.blocks.parts,
               direct = last && f.plain && b.cols == width;
    // Through L1, only for results that are not to stay in caches: tile registers store other rows as fast directly
    // (f32, cubes of 1024) or faster (bf16 of 256, int8 up to 1024: by a fifth).
    const bool moves = direct && past_caches_;
    const std::int64_t r = w.tiles.begin(t), rows = w.tiles.size(t), at = pass_begin_ + w.row + r;
    // Sets with `prepare` ignore these lines.
    const int own_lines = last && !moves && !s.prepare ? static_cast<int>(ceil_div(b.cols * f.d_element, 64)) : 0;
    std::byte* d = f.d + at * f.d_ld + b.col * f.d_element;
    std::uint32_t* buffer = buffers_[in_turn_];
    std::uint32_t *sums = sums_ + q * s.rows * s.vectors * s.lanes, *partial = b.partial + r * width;
    TileArgs args{.a = plan_.a_in_place ? element(p.a, at, (g.k_begin(w.block) + k0) * s.group, true)
                                        : a_ + (t * a_panel_words(w.block) + k0 * rows) * kWord,
                  .lda = p.a.ld * dtype_bytes(p.a.dtype),
                  .b = b.b + k0 * width * kWord,
                  .k = kw,
                  .rows = static_cast<int>(rows),
                  .cin = turn > 0      ? sums
                         : w.block > 0 ? partial
                                       : nullptr,
                  .cin_ld = width,
                  .cout = last_turn ? partial : sums,
                  .cout_ld = width,
                  .ahead = fetches > 0 ? ahead.base + line / ahead.lines * 64 + line % ahead.lines * ahead.step : b.b,
                  .ahead_end = ahead.base + ahead.lines * ahead.step,
                  .ahead_step = ahead.step,
                  .ahead_wrap = ahead.lines * ahead.step - 64,
                  .ahead_count = fetches,
                  .own = d,
                  .own_ld = f.d_ld,
                  .own_lines = own_lines,
                  .moved = moved_.from,
                  .moved_to = moved_.to,
                  .moved_ld = f.d_ld,
                  .moved_rows = s.prepare ? 0 : moved_.rows,
                  .moved_vectors = moved_.vectors,
                  .meanwhile = waiting_.rows > 0 || moved_.rows > 0 ? &Worker::slice_of_last : nullptr,
                  .worker = this};
    if (direct && !moves) args.cout = d, args.cout_ld = f.d_ld / kWord;
    else if (last) args.cout = buffer;
    if (!s.prepare) moved_ = {};
    if (s.prepare && prepared_ != rows) s.prepare(prepared_ = args.rows);
    (plan_.a_in_place ? s.tile_in_place : s.tile_packed)[rows][b.vectors](args);
    if (!last || (direct && !moves)) return;
    // The other buffer is used by the next tile.
    finish(waiting_.rows);
    move(moved_.rows);
    const int steps = static_cast<int>(std::max<std::int64_t>(1, kw / s.k_step));
    slice_ = (args.rows + steps - 1) / steps;
    if (moves) {
      moved_ = {reinterpret_cast<const std::byte*>(buffer), d, args.rows, static_cast<int>(b.vectors)};
      in_turn_ ^= 1;
      return;
    }
    waiting_ = {
        .sums = buffer, .ld = width, .row = at, .col = b.col, .rows = args.rows, .cols = static_cast<int>(b.cols)};
    if (s.prepare) in_turn_ ^= 1;  // its epilogue runs alongside the next tile
    else finish(waiting_.rows);
  }

  const KernelSet& s;
  const Problem& p;
  const Plan& plan_;
  const Grid& g;
  const Finish& f;
  const bool past_caches_;  // destination of the tiles' stores
  std::byte *a_, *b_, *c_;
  std::uint32_t* sums_;
  std::int64_t panel0_ = 0, panels_ = 0, pass_begin_ = 0, pass_size_ = 0, kept_unit_ = -1, home_ = 0;
  Next next_;         // packed, or being packed
  int prepared_ = 0;  // number of rows
  Panel group_[Plan::kMaxGroup];
  // If products do not need the vector unit (sets with `prepare`), the epilogue of a tile runs between the steps of the
  // next.
  struct {
    const std::uint32_t* sums = nullptr;
    std::int64_t ld = 0, row = 0, col = 0;
    int rows = 0, cols = 0;
  } waiting_;
  // A tile that is moved with non-temporal stores while the next one multiplies.
  struct {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    int rows = 0, vectors = 0;
  } moved_;
  alignas(64) std::uint32_t buffers_[2][KernelSet::kMaxRows * KernelSet::kMaxVectors * 16];
  int in_turn_ = 0, slice_ = 0;  // rows of either that are processed between two steps
};

}  // namespace hpcdl::gemm::blocked
