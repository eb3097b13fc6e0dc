#include "hpcdl/ops/matmul/device_gemm.h"

#include <algorithm>
#include <string>
#include <vector>

#include "hpcdl/core/choose_way.h"
#include "hpcdl/cuda/arch.cuh"
#include "hpcdl/cuda/workspace.h"
#include "hpcdl/op.h"
#include "hpcdl/ops/matmul/cublas_lt.h"
#include "hpcdl/ops/matmul/gemm_choice.cuh"
#include "hpcdl/ops/matmul/gemm_parts.h"
#include "hpcdl/ops/matmul/plain_gemm.cuh"
#include "hpcdl/ops/matmul/row_invariant_gemm.h"
#include "hpcdl/ops/matmul/tile_configs.cuh"

namespace hpcdl::cuda {
namespace {

// Candidate ids: 0 the plain kernel, 1 cuBLASLt's first choice; from 2 on tiles, in the order of kTiles, for each of
// kGroups, with k whole or in shares; then cuBLASLt's other choices. Only names mean the same in every build.
constexpr int kGroups[] = {16, 8}, kPlain = 0, kCublasLt = 1, kFirstTile = 2,
              kPerTile = 2 * static_cast<int>(std::size(kGroups));
constexpr int kCublasLtNext = kFirstTile + kPerTile * static_cast<int>(std::size(kTiles)),
              kCount = kCublasLtNext + kCublasLtChoices - 1;
constexpr std::size_t kHalf =
    kWorkspaceBytes / 2;  // of the workspace: copies of operands first, then shares of sums or cuBLASLt
static_assert(kHalf >= kCublasLtBytes);
constexpr std::string_view kBehind = "cublasLt, sums through memory";

struct Way {
  int tile, group;
  bool shares;
};
Way way_of(int id) {
  const int i = (id - kFirstTile) % kPerTile;
  return {(id - kFirstTile) / kPerTile, kGroups[i / 2], i % 2 == 1};
}

bool is_tile(int id) { return id >= kFirstTile && id < kCublasLtNext; }
/// Which of cuBLASLt's choices a candidate is, or -1.
int library_choice(int id) { return id == kCublasLt ? 0 : id >= kCublasLtNext ? id - kCublasLtNext + 1 : -1; }

/// Bytes per microsecond of copies of operands and of sums that pass through memory; operations per microsecond of
/// cuBLASLt if rows are not aligned to 16 bytes, and the factor by which a GELU lengthens its time then; the factor for
/// tiles whose rows are not aligned to 128 bytes, so that each box of the copy engine reads more lines. H200, us, bf16
/// linear (tiles | tiles on copies aligned to lines | cuBLASLt | cuBLASLt with sums through memory): 1000x3000x5000 84
/// | - | 49 | 60, 4096x4096x1000 76 | 67 | 57 | 123, 2048x2048x2000 27 | 39 | 28 | 43, 4096x4096x1032 79 | 72 | 65 |
/// 130, 4096x4096x4104 311 | - | 215 | 289. Unaligned (copied, in blocks the last four | cuBLASLt, with GELU):
/// 2048x4096x1001 37 | 154, 557, 4096x1001x4096 68 | 337, 1122, 8191x4099x1023 273 | 571, 2443, 16384x777x777 116 |
/// 243, 764, 256x50257x768 131 | 219, 740, 4096x4096x4097 427 | 1059, 4490.
constexpr double kPassBandwidth = 2.5e6, kUnalignedBandwidth = 1.5e6, kUnalignedRate = 110e6, kUnalignedGelu = 3.5,
                 kOffLines = 1.4, kPassLaunch = 3;

float* shares_of(Stream& s) { return reinterpret_cast<float*>(static_cast<std::byte*>(workspace(s)) + kHalf); }

void in_shares(Stream& s, const Gemm& g, const Way& w, int splits) {
  const std::int64_t ld = padded(g.n);
  float* parts = shares_of(s);
  run_tiles(s, g, *kTiles[w.tile], w.group, splits, parts, ld);
  add_parts_of(s, g, parts, splits, ld);
}

/// For results of any type and address, the sums pass through memory as one share.
bool fits_as_shares(const Gemm& g) {
  Gemm sums = g;
  sums.n = padded(g.n);
  sums.out = {.d = nullptr, .dtype = DType::f32, .ld = padded(g.n)};
  return fits_tiles(sums) && static_cast<std::size_t>(g.batch * g.m * padded(g.n)) * 4 <= kHalf;
}

/// Whether rows of an operand are aligned to 128 bytes, if its address is.
bool on_lines(const GemmOperand& o) { return o.ld * dtype_bytes(o.dtype) % 128 == 0; }

/// The operands of a product that are copied first, with or without room for them.
struct Copies {
  bool a = false, b = false;
  std::size_t a_bytes = 0, b_bytes = 0;

  explicit operator bool() const { return (a || b) && a_bytes + b_bytes <= kHalf; }
  double microseconds() const {
    return 2 * static_cast<double>(a_bytes + b_bytes) / kPassBandwidth + kPassLaunch * (a + b);
  }
};
/// The operands that are not `ready`.
template <class F> Copies copies_of(const Gemm& g, F&& ready) {
  Copies c{.a = !ready(g.a), .b = !ready(g.b)};
  if (c.a) c.a_bytes = copied_bytes(g, Side::a);
  if (c.b) c.b_bytes = copied_bytes(g, Side::b);
  return c;
}
/// The operands that the copy engine cannot read directly.
Copies unreadable(const Gemm& g) {
  return copies_of(g, [&](const GemmOperand& o) {
    return o.dtype == g.compute && mappable(o.data, o.dtype, o.ld) && o.batch_stride * dtype_bytes(o.dtype) % 16 == 0;
  });
}
/// g with the copies instead of its operands, if they fit; else g.
Gemm as_copied(Stream& s, const Gemm& g, const Copies& c) {
  if (!c) return g;
  Gemm copied = g;
  auto* to = static_cast<std::byte*>(workspace(s));
  if (c.a) copied.a = copied_operand(g, Side::a, to);
  if (c.b) copied.b = copied_operand(g, Side::b, to + c.a_bytes);
  return copied;
}
void make_copies(Stream& s, const Gemm& g, const Gemm& copied, const Copies& c) {
  if (!c) return;
  if (c.a) copy_operand(s, g, Side::a, copied.a);
  if (c.b) copy_operand(s, g, Side::b, copied.b);
}

std::int64_t rows_of_sums(const Gemm& g) { return static_cast<std::int64_t>(kHalf / 4) / padded(g.n) / 128 * 128; }
Gemm sums_of(const Gemm& g, void* sums) {
  Gemm p = g;
  p.out = {.d = sums, .dtype = DType::f32, .ld = padded(g.n)};
  return p;
}

/// For epilogues that cuBLASLt does not support: its sums pass through memory in f32, as many rows at a time as fit.
void behind_cublas_lt(Stream& s, const Gemm& g) {
  auto* sums = static_cast<float*>(workspace(s));
  for (std::int64_t row = 0, most = rows_of_sums(g); row < g.m; row += most) {
    const Gemm part = block_of(g, row, std::min(most, g.m - row), 0, g.n);
    run_cublas_lt(s, sums_of(part, sums), shares_of(s), kHalf);
    add_parts_of(s, part, sums, 1, padded(g.n));
  }
}
/// Whether all parts of g can be computed that way.
bool fits_behind_cublas_lt(Stream& s, const Gemm& g) {
  const std::int64_t most = rows_of_sums(g);
  if (g.batch > 1 || (g.compute == DType::f32 && g.out.dtype != DType::f32) || most == 0) return false;
  Gemm part = sums_of(g, workspace(s));
  const auto fits = [&](std::int64_t rows) { return part.m = rows, rows == 0 || fits_cublas_lt(s, part); };
  return g.m <= most ? fits(g.m) : fits(most) && fits(g.m % most);
}

double flops(const Gemm& g) {
  return 2.0 * static_cast<double>(g.batch) * static_cast<double>(g.m) * static_cast<double>(g.n) *
         static_cast<double>(g.k);
}
/// Too little work to justify a copy.
bool tiny(const Gemm& g) { return flops(g) < 1 << 25; }

/// For g without copies. For tiny products the tiles' own choice is final: it determines their bits.
double tile_microseconds(const Gemm& g, const TileChoice& c) {
  return tiny(g) || (on_lines(g.a) && on_lines(g.b)) ? c.microseconds : kOffLines * c.microseconds;
}

/// For cuBLASLt if rows are not aligned to 16 bytes, or the length of rows is not a multiple of eight. H200, us: 16x10766x3072 42,
/// 16x4096x4098 22, 128x10506x13321 334.
double unaligned_library_microseconds(const Gemm& g) {
  const bool gelu = g.out.activation == GemmActivation::gelu_tanh || g.out.activation == GemmActivation::gelu_erf;
  const double computing = flops(g) / kUnalignedRate * (gelu ? kUnalignedGelu : 1),
               reading =
                   static_cast<double>(g.batch * g.k * (g.m + g.n) * dtype_bytes(g.compute)) / kUnalignedBandwidth;
  return std::max(computing, reading) + 2 * kPassLaunch;
}

/// The time of f32 sums of g that pass through memory, and of the launch that finishes them.
double microseconds_of_sums(const Gemm& g) {
  return kPassLaunch + 8.0 * static_cast<double>(g.batch * g.m * padded(g.n)) / kPassBandwidth;
}

/// H200, us, bf16 (ours | cuBLASLt): 1x256x2048 2.0 | 5.7, 1x2048x2048 4.6 | 6.0, 1x5632x2048 10.2 | 8.7, 1x2048x5632
/// 10.7 | 10.5, 1x32000x2048 36.5 | 34.7, 1x4096x11008 31 | 27, 2x4096x4096 18 | 13, 4x11008x4096 57 | 25. Our kernel
/// reads constant weights before the previous kernel has ended, which gains more among short kernels. H100: 1x2304x2304
/// 8.8 | 6.1, 1x14336x512 with GELU 11 | 7.4.
bool library_reads_few_rows(const Gemm& g) {
  const std::int64_t least = g.m > 1 ? 1 << 20 : 5 << 20;
  return fits_tiles(g) && g.k % 8 == 0 && g.n * g.k >= least && !(g.m == 1 && g.constant_b);
}

/// The same for rows at other addresses than multiples of 16. H200, us (ours | cuBLASLt): 2x8192x5666 82 | 43.
bool library_reads_unaligned_rows(const Gemm& g) {
  constexpr double kOurBandwidth = 1.1e6;
  const auto bytes = static_cast<double>(g.batch * g.n * g.k * dtype_bytes(g.b.dtype));
  return !fits_tiles(at_whole_addresses(g)) && unaligned_library_microseconds(g) < bytes / kOurBandwidth;
}

/// The least work of a 16-bit product that tiles cannot take for which cuBLASLt is faster. H200, us, bf16 (ours |
/// cuBLASLt): 4x767x768 10.5 | 6.9, 768x767x4 20 | 4.5, 64x64x63 19 | 5.6, 16x33x1001 8.4 | 8.4, 32x101x1001 89 | 7.5,
/// 100x33x4000 496 | 8.9.
constexpr double kLeastUnaligned = 1 << 18;

/// Small f32 products, in microseconds (ours | cuBLASLt): 16x256x256 3.9 | 30, 8x512x512 6.9 | 7.1, 64x64x64 7.3 | 5.6,
/// 128x128x128 11 | 4.4, 1x11287x256 10 | 6.0, 64x256x256 19 | 6.0, 32x100x1000 67 | 9.0, 10x10x100000 6627 | 34;
/// 1x768x2048 with a residual on an H100 14 | 5.4.
bool best_by_small_kernels(const Gemm& g) {
  const double work = flops(g);
  return std::min(g.m, g.n) <= 16 && g.k <= 512 ? work <= 1 << 22 : work < 1 << 18;
}

int built_in(Stream& s, const Gemm& g) {
  if (fits_few_rows(g)) return library_reads_few_rows(g) && fits_cublas_lt(s, g) ? kCublasLt : kPlain;
  if (g.compute == DType::f32) return !best_by_small_kernels(g) && fits_cublas_lt(s, g) ? kCublasLt : kPlain;
  if (!has_sm90a(s) || !fits_tiles(g)) return flops(g) >= kLeastUnaligned && fits_cublas_lt(s, g) ? kCublasLt : kPlain;
  const auto c = choose_tile(g, multiprocessors(s), kHalf);
  const bool whole_pieces = g.k % 8 == 0 && (!g.a.transposed || g.m % 8 == 0);
  const double library = whole_pieces ? library_microseconds(g) : unaligned_library_microseconds(g);
  if (tile_microseconds(g, c) > library && fits_cublas_lt(s, g)) return kCublasLt;
  return kFirstTile + c.tile * kPerTile + (c.splits > 1 ? 1 : 0);
}

/// A product as choose_way() sees it.
struct GemmCall {
  Stream& s;
  const Gemm& g;

  static std::string_view op() { return "gemm"; }
  static std::string_view family() { return op(); }
  auto fields() const { return fields_of(g); }
  static std::string_view name(int id) { return gemm_ways()[static_cast<std::size_t>(id)]; }
  static int number(std::string_view name) { return number_of(gemm_ways(), name); }
  bool fits(int id) const {
    if (id == kPlain) return true;
    if (const int choice = library_choice(id); choice >= 0) return fits_cublas_lt(s, g, choice);
    return has_sm90a(s) && fits_tiles(g);
  }
  int preferred(int id) const { return fits(id) ? id : -1; }
  int built_in() const { return cuda::built_in(s, g); }
  std::string words() const { return fmt::format("gemm {} {}", unit_name(unit_of(g.compute)), words_of(g)); }
  std::any operands() const { return g; }
};
/// Whether the table says how to compute g: then it is computed from its operands where they lie.
bool told(Stream& s, const Gemm& g) { return told_way(GemmCall{s, g}) >= 0; }
/// For products that are computed in several steps, without a choice.
void note(Stream& s, const Gemm& g, std::string_view used, std::any operands = {}) {
  if (s.way_notes()) note_way(GemmCall{s, g}, used, std::move(operands));
}

}  // namespace

std::span<const std::string> gemm_ways() {
  static const auto names = [] {
    std::vector<std::string> all(kCount);
    for (int id = 0; id < kCount; ++id) {
      auto& name = all[static_cast<std::size_t>(id)];
      const int choice = library_choice(id);
      if (id == kPlain) name = "plain";
      else if (choice >= 0) name = choice == 0 ? "cublasLt" : fmt::format("cublasLt {}", choice + 1);
      else {
        const Way w = way_of(id);
        const TileConfig& c = *kTiles[w.tile];
        name = fmt::format("{}x{}x64{} stages {} cluster {} raster {}{}", c.m, c.n, c.in_turn ? " in turn" : "",
                           c.stages, c.cluster, w.group, w.shares ? " split" : "");
      }
    }
    return all;
  }();
  return names;
}

std::span<const GemmCandidate> gemm_candidates(Stream& s, const Gemm& g, bool others) {
  thread_local std::vector<GemmCandidate> found;
  found.clear();
  const GemmCall call{s, g};
  for (int id = 0; id < (others ? kCount : kCublasLtNext); ++id) {
    if (call.fits(id) &&
        (!is_tile(id) || !way_of(id).shares || best_splits(g, way_of(id).tile, multiprocessors(s), kHalf) > 1))
      found.push_back({id, GemmCall::name(id)});
  }
  return found;
}

void gemm_with(Stream& s, const Gemm& g, int candidate) {
  require(candidate >= 0 && candidate < kCount, "matmul", "there is no candidate number {}: there are {}", candidate,
          kCount);
  if (g.m == 0 || g.n == 0 || g.batch == 0) return;
  if (candidate == kPlain) return plain_gemm(s, g);
  if (const int choice = library_choice(candidate); choice >= 0)
    return run_cublas_lt(s, g, shares_of(s), kHalf, choice);
  require(has_sm90a(s) && fits_tiles(g), "matmul",
          "the tile kernel cannot take this product: it needs 16-bit operands at multiples of 16 bytes and an H100 or "
          "later");
  const Way w = way_of(candidate);
  const int splits = w.shares ? best_splits(g, w.tile, multiprocessors(s), kHalf) : 1;
  if (splits > 1) in_shares(s, g, w, splits);
  else run_tiles(s, g, *kTiles[w.tile], w.group);
}

int gemm_choice(Stream& s, const Gemm& g) { return choose_way(GemmCall{s, g}); }

namespace {

/// Whether cuBLASLt is faster with a copy of a, which is stored column by column. H200, us, f32, (as it is | copied row by
/// row): 2x11008x8192 1269 | 169, 8x11008x8192 210 | 179, 2x4096x4096 49 | 43, 1x11008x8192 91 | 90.
bool worth_rows_of_a(Stream& s, const Gemm& g) {
  return g.a.transposed && g.m > 1 && g.m <= 8 && g.batch == 1 && g.n * g.k >= 1 << 24 && !told(s, g) &&
         fits_cublas_lt(s, g) && a_by_rows(g, nullptr).ld * g.m * 4 <= static_cast<std::int64_t>(kHalf);
}

void gemm_f32(Stream& s, Gemm g) {
  g.tf32 = g.tf32 || s.numerics().products == F32Products::tf32;
  if (worth_rows_of_a(s, g)) {
    const auto rows = a_by_rows(g, workspace(s));
    copy_a_by_rows(s, g, rows);
    g.a = rows;
  }
  const int choice = gemm_choice(s, g);
  if (choice == kPlain && !tiny(g) && g.k > 0 && !fits_cublas_lt(s, g) && fits_behind_cublas_lt(s, g))
    behind_cublas_lt(s, g);
  else gemm_with(s, g, choice);
}

/// For operands that tiles can read directly but that are not aligned to lines: the copies that gain more than they
/// cost.
Copies onto_lines(Stream& s, const Gemm& g) {
  if (told(s, g) || !is_tile(built_in(s, g))) return {};
  const Copies c = copies_of(g, on_lines);
  const double tiles = choose_tile(g, multiprocessors(s), kHalf).microseconds;
  return c && tiles + c.microseconds() < kOffLines * tiles ? c : Copies();
}

/// For operands not aligned to lines and an epilogue that cuBLASLt does not support: whether its sums through memory
/// take less time than tiles.
bool goes_behind_cublas_lt(Stream& s, const Gemm& g) {
  const Copies copies = copies_of(g, on_lines);
  if (told(s, g) || !(copies.a || copies.b) || g.batch > 1 || fits_cublas_lt(s, g)) return false;
  const double tiles = choose_tile(g, multiprocessors(s), kHalf).microseconds,
               own = copies ? std::min(kOffLines * tiles, tiles + copies.microseconds()) : kOffLines * tiles;
  return library_microseconds(sums_of(g, nullptr)) + microseconds_of_sums(g) < own && fits_behind_cublas_lt(s, g);
}

/// The time of copies of operands, of tiles, and of sums that pass through memory if `shares`.
double microseconds_of_copies(Stream& s, const Gemm& there, const Copies& c, bool shares) {
  return c.microseconds() + choose_tile(there, multiprocessors(s), kHalf).microseconds +
         (shares ? microseconds_of_sums(there) : 0.0);
}
void tiles_or_shares(Stream& s, const Gemm& g) {
  if (fits_tiles(g)) return gemm_with(s, g, gemm_choice(s, g));
  const auto c = choose_tile(g, multiprocessors(s), kHalf);
  in_shares(s, g, {c.tile, kGroups[0], true}, c.splits);
}

/// A product whose copies and sums do not fit at once, divided into blocks of D that do: copies of a in the first
/// quarter of the workspace, of b in the second, sums in the second half.
class InBlocks {
 public:
  InBlocks(Stream& s, const Gemm& g, const Copies& copies) : s_(s), g_(g), copies_(copies) {
    if (g.batch > 1) return;
    const auto most = [&](Side side, bool copied, std::int64_t all) {
      const auto bytes = copied ? copied_bytes(g, side) : 0;
      return bytes <= kHalf / 2
                 ? all
                 : static_cast<std::int64_t>(static_cast<double>(all) * (kHalf / 2) / static_cast<double>(bytes)) /
                       256 * 256;
    };
    cols_ = most(Side::b, copies.b, g.n), rows_ = most(Side::a, copies.a, g.m);
    if (std::min(rows_, kFewest) * padded(cols_) * 4 > static_cast<std::int64_t>(kHalf))
      cols_ = static_cast<std::int64_t>(kHalf / 4) / kFewest;
    if (cols_ > 0) rows_ = std::min(rows_, static_cast<std::int64_t>(kHalf / 4) / padded(cols_) / 256 * 256);
    if (rows_ <= 0 || cols_ <= 0) return;
    const Gemm first = with_a(with_b(block_of(g, 0, rows_, 0, cols_)));
    fits_ = fits_tiles(first) || fits_as_shares(first);
    const auto blocks = [](std::int64_t all, std::int64_t one) { return static_cast<double>((all + one - 1) / one); };
    const auto pass = [](std::size_t bytes) { return kPassLaunch + 2 * static_cast<double>(bytes) / kPassBandwidth; };
    microseconds_ = choose_tile(first, multiprocessors(s), kHalf).microseconds;
    if (!fits_tiles(first)) microseconds_ += microseconds_of_sums(first);
    if (copies.a) microseconds_ += pass(copied_bytes(first, Side::a));
    microseconds_ *= blocks(g.m, rows_);
    if (copies.b) microseconds_ += pass(copied_bytes(first, Side::b));
    microseconds_ *= blocks(g.n, cols_);
  }
  explicit operator bool() const { return fits_; }
  double microseconds() const { return microseconds_; }

  void run() const {
    for (std::int64_t col = 0; col < g_.n; col += cols_) {
      const Gemm given = block_of(g_, 0, g_.m, col, std::min(cols_, g_.n - col)), columns = with_b(given);
      if (copies_.b) copy_operand(s_, given, Side::b, columns.b);
      for (std::int64_t row = 0; row < g_.m; row += rows_) {
        const Gemm block = block_of(columns, row, std::min(rows_, g_.m - row), 0, columns.n), there = with_a(block);
        if (copies_.a) copy_operand(s_, block, Side::a, there.a);
        tiles_or_shares(s_, there);
      }
    }
  }

 private:
  Gemm with_a(Gemm g) const {
    if (copies_.a) g.a = copied_operand(g, Side::a, workspace(s_));
    return g;
  }
  Gemm with_b(Gemm g) const {
    if (copies_.b) g.b = copied_operand(g, Side::b, static_cast<std::byte*>(workspace(s_)) + kHalf / 2);
    return g;
  }

  static constexpr std::int64_t kFewest = 1024;  // divides rows instead of columns

  Stream& s_;
  const Gemm& g_;
  Copies copies_;
  std::int64_t rows_ = 0, cols_ = 0;
  bool fits_ = false;
  double microseconds_ = 0;
};

/// Operands are copied for the tiles, and results that tiles cannot write pass through memory as sums; or cuBLASLt
/// computes everything without copies, for products that tiles could not compute at any address.
void gemm_unaligned(Stream& s, const Gemm& g) {
  const Copies copies = unreadable(g);
  const Gemm there = as_copied(s, g, copies);
  const bool tiles = fits_tiles(there), shares = !tiles && fits_as_shares(there), whole = tiles || shares;
  const InBlocks blocks(s, g, copies);
  if (!fits_tiles(at_whole_addresses(g))) {
    const double own = whole ? microseconds_of_copies(s, there, copies, shares) : blocks ? blocks.microseconds() : 1e30;
    if (const bool asked = told_way(GemmCall{s, g}) == kCublasLt;
        (asked || unaligned_library_microseconds(g) < own) && fits_cublas_lt(s, g)) {
      note(s, g, GemmCall::name(kCublasLt));
      return gemm_with(s, g, kCublasLt);
    }
    const double sums = unaligned_library_microseconds(sums_of(g, nullptr)) + microseconds_of_sums(g);
    if (sums < own && fits_behind_cublas_lt(s, g)) {
      note(s, g, kBehind);
      return behind_cublas_lt(s, g);
    }
  }
  if (whole || blocks) note(s, g, "tiles on copies of operands");
  if (!whole && blocks) return blocks.run();
  make_copies(s, g, there, copies);
  if (whole) tiles_or_shares(s, there);
  else gemm_with(s, there, gemm_choice(s, there));
}

}  // namespace

void gemm(Stream& s, const Gemm& given) {
  if (given.m == 0 || given.n == 0 || given.batch == 0) return;
  if (s.numerics().row_invariant) return row_invariant_gemm(s, given);
  if (given.compute == DType::f32) return gemm_f32(s, given);
  const bool fits = fits_tiles(given);
  if (fits_few_rows(given) && !fits) {
    const bool library = library_reads_unaligned_rows(given);
    if (library && !fits_cublas_lt(s, given) && fits_behind_cublas_lt(s, given)) {
      note(s, given, kBehind);
      return behind_cublas_lt(s, given);
    }
    const int way = library && fits_cublas_lt(s, given) ? kCublasLt : kPlain;
    return note(s, given, GemmCall::name(way)), gemm_with(s, given, way);
  }
  if (fits_few_rows(given)) return gemm_with(s, given, gemm_choice(s, given));
  if (given.k == 0 || tiny(given) || !has_sm90a(s)) return gemm_with(s, given, gemm_choice(s, given));
  if (!fits) return gemm_unaligned(s, given);
  if (goes_behind_cublas_lt(s, given)) {
    note(s, given, kBehind, given);
    return behind_cublas_lt(s, given);
  }
  const Copies copies = onto_lines(s, given);
  const Gemm there = as_copied(s, given, copies);
  make_copies(s, given, there, copies);
  gemm_with(s, there, gemm_choice(s, there));
}

}  // namespace hpcdl::cuda
