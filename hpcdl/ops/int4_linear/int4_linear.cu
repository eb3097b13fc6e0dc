#include <algorithm>
#include <optional>

#include "hpcdl/core/choose_way.h"
#include "hpcdl/cuda/workspace.h"
#include "hpcdl/ops/int4_linear/int4_launch.cuh"
#include "hpcdl/ops/int4_linear/int4_ways.h"
#include "hpcdl/ops/int4_linear/int4_widen.h"
#include "hpcdl/ops/int4_linear/int4_widened.h"
#include "hpcdl/ops/matmul/device_gemm.h"

namespace hpcdl::cuda {
namespace {

using quant4::kDirects;
using quant4::kExactInRegisters;
using quant4::kExactWay;
using quant4::kFirstDirect;
using quant4::kFirstFew;
using quant4::kFirstStrip;
using quant4::kFirstWide;
using quant4::kManyWay;
using quant4::kWays;
using quant4::kWidenedInMemory;
using quant4::kWidenedInRegisters;

/// From this number of rows on, x in bf16 is not rounded and weights are widened to bf16: in registers, or from
/// kFewestInMemory on in memory, if a product has at least kFewestTiles tiles of 128 x 128. H200, us, groups of 64, 512 rows
/// (in registers | in memory): N x K 4096 x 4096 30 | 37, 11008 x 4096 83 | 103, 4096 x 11008 68 | 128; 1024 rows, of
/// which registers took at most 128 at a time, 78 | 60, 180 | 174, 182 | 175.
constexpr std::int64_t kFewestWidened = 33, kFewestInMemory = 768, kFewestTiles = 32;
/// The same for exact products: x in bf16 is multiplied by both parts of the weights, and x in f32 by their values in
/// f32. H200, us, groups of 32 (rows of x times weights | widened in memory), N x K 4096 x 4096 and 2048 x 5632: bf16 64
/// rows 61 | 63 and 44 | 55, 128 rows 116 | 68 and 82 | 59, 256 rows 222 | 90 and 155 | 73; f32 128 rows 153 | 160 and
/// 110 | 121, 256 rows 296 | 237 and 209 | 177. In bf16 in registers, where the group sums of four bits are scaled, 4096 x
/// 4096, 9 rows 15 (8 rows of x at a time: 20), 64 rows 16, 128 rows 20, 256 rows 27, 512 rows 47; 512 rows of 11008 x 8192
/// 209 (widened in memory: 544).
constexpr std::int64_t kFewestExactParts = 80, kFewestExact = 176, kFewestExactInRegisters = 9;

constexpr std::string_view kNames[kWays] = {
    "row 32x1 w16 s1",        "row 32x1 w16 s2",        "row 32x1 w8 s1",       "row 16x1 w16 s1",
    "row 64x1 w8 s2",         "row 16x1 w8 s2",         "rows 32x8 w8 s2",      "rows 32x16 w8 s1",
    "rows 32x16 w4 s2",       "rows 32x16 w8 s2",       "tiles 128x128 w16 s3", "exact 16x8 w8 s3",
    "warpgroups 64x32 k4 c2", "warpgroups 64x64 k4 c2", "warpgroups 64x64 k4",  "warpgroups 64x128 k2 c2",
    "warpgroups 64x128 k2",   "warpgroups 128x128",     "strip 32x1 w16",       "strip 64x1 w16",
    "direct 32x1 w16",        "direct 64x1 w16",        "direct 32x1 w32",      "widened in memory",
    "widened in registers",   "exact in registers",
};

int attribute(cudaDeviceAttr which, const Stream& s) {
  int v = 0;
  check(cudaDeviceGetAttribute(&v, which, s.device().index), "cudaDeviceGetAttribute");
  return v;
}

/// Properties of the stream's GPU, queried once.
const quant4::Limits& limits(const Stream& s) {
  static std::atomic<const quant4::Limits*> known[64] = {};
  auto& slot = known[s.device().index % 64];
  if (const auto* found = slot.load(std::memory_order_acquire)) return *found;
  const auto* fresh = new quant4::Limits{multiprocessors(s), attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, s),
                                         attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, s),
                                         attribute(cudaDevAttrComputeCapabilityMajor, s) >= 9, has_sm90a(s)};
  const quant4::Limits* none = nullptr;
  if (!slot.compare_exchange_strong(none, fresh)) delete fresh;
  return *slot.load();
}

template <class F> decltype(auto) with_group(std::int64_t group, F&& f) {
  return group == 32   ? f.template operator()<32>()
         : group == 64 ? f.template operator()<64>()
                       : f.template operator()<128>();
}

bool aligned(View v) { return reinterpret_cast<std::uintptr_t>(v.data()) % 16 == 0; }
bool aligned(const int4::Weight& w) { return aligned(w.packed) && aligned(w.scale) && aligned(w.offset); }

bool serves_direct(const Stream& s, const quant4::DirectWay& way, const Int4Shape& shape) {
  return limits(s).warpgroups && shape.rows == 1 && !shape.exact && shape.k % quant4::kChunk == 0 &&
         shape.k <= way.warps * quant4::kChunk && shape.n % (way.pairs * quant4::Direct<32, 1>::kPairRows) == 0 &&
         shape.n * shape.k < (std::int64_t{1} << 32);
}

bool serves(const Stream& s, int way, const Int4Shape& shape) {
  if (way == kWidenedInMemory) return shape.in_memory && shape.rows > int4::kBatch;
  if (way == kWidenedInRegisters || way == kExactInRegisters)
    return shape.in_registers && shape.rows > int4::kBatch && shape.exact == (way == kExactInRegisters);
  if (way >= kFirstDirect) return serves_direct(s, kDirects[way - kFirstDirect], shape);
  const bool strip = way >= kFirstStrip, wide = way >= kFirstWide && !strip;
  if ((way == kExactWay) != shape.exact || ((way < kFirstFew || strip) && shape.rows != 1)) return false;
  if ((strip || wide) && (!limits(s).warpgroups || shape.n % int4::kTileRows != 0)) return false;
  if (strip && !shape.constant) return false;
  if (wide && (shape.rows <= int4::kBatch || shape.k % quant4::kWideStep != 0)) return false;
  return with_group(shape.group, [&]<int kGroup>() { return quant4::shared_bytes<kGroup>(way, shape.k); }) <=
         limits(s).shared_per_block;
}

/// The bytes of W that a product widens at a time, in half of the workspace, from where L2 serves them; in two parts
/// [x x] lies there, too.
constexpr std::int64_t kWidenedBytes = kWorkspaceBytes / 2;
/// How many rows of `row_bytes` fit into such a place.
std::int64_t rows_that_fit(std::int64_t bytes, std::int64_t row_bytes) { return bytes / row_bytes / 256 * 256; }
std::int64_t widened_rows(std::int64_t k) { return rows_that_fit(kWidenedBytes, 2 * k); }

/// Up to here a matrix has too few rows of tiles to occupy every multiprocessor.
bool is_short(const Int4Shape& shape) { return shape.n <= 6144; }

/// Among the warpgroup products: larger tiles if there are enough of them for every multiprocessor, divided steps if
/// not. -1: it is better to read the weights again for each 16 rows of x.
int picked_wide(const Int4Shape& shape) {
  if (shape.rows <= 32) return -1;
  if (shape.rows <= 64) return is_short(shape) ? kFirstWide + 1 : kFirstWide + 2;
  if (!is_short(shape)) return kFirstWide + 5;
  return shape.rows <= 128 ? kFirstWide + 3 : shape.rows <= 256 ? kFirstWide + 4 : kFirstWide + 5;
}

/// -1: x is rounded, or multiplied by weights that are widened for each of its rows.
int picked_widened(const Int4Shape& shape) {
  if (shape.exact && shape.in_registers && shape.rows >= kFewestExactInRegisters) return kExactInRegisters;
  if (shape.exact)
    return shape.in_memory && shape.rows >= (shape.two_parts ? kFewestExactParts : kFewestExact) ? kWidenedInMemory
                                                                                                 : -1;
  const std::int64_t tiles = (shape.rows + 127) / 128 * ((std::min(shape.n, widened_rows(shape.k)) + 127) / 128);
  if (shape.in_memory && shape.rows >= kFewestInMemory && tiles >= kFewestTiles) return kWidenedInMemory;
  return shape.rows >= kFewestWidened ? kWidenedInRegisters : -1;
}

/// -1: for larger matrices, the ring of a block that continues to further rows keeps more of their weights in flight.
int picked_strip(const Int4Shape& shape) {
  const std::int64_t weights = shape.n * shape.k;
  if (weights < (std::int64_t{1} << 22) || weights > (std::int64_t{1} << 24)) return -1;
  return weights < (std::int64_t{1} << 23) ? kFirstStrip : kFirstStrip + 1;
}

/// -1: for a short K the ring keeps more in flight. If blocks of 64 rows occupy every other multiprocessor, those of
/// the next product run on the others.
int picked_direct(const Int4Shape& shape) {
  if (shape.n > 32768 && shape.k <= 1024) return -1;
  // A block of 32 warps occupies a whole multiprocessor: for matrices that need each multiprocessor once.
  if (shape.k > kDirects[0].warps * quant4::kChunk) return shape.n <= 32 * 132 ? kFirstDirect + 2 : -1;
  return shape.n > 2048 && shape.n <= 4096 ? kFirstDirect + 1 : kFirstDirect;
}

int picked(const Int4Shape& shape) {
  if (shape.exact) return kExactWay;
  if (shape.rows == 1) return shape.k <= 1024 ? 2 : shape.n * shape.k >= (std::int64_t{1} << 26) ? 1 : 0;
  if (shape.rows <= 8) return kFirstFew;
  if (shape.rows <= 16) return is_short(shape) ? kFirstFew + 3 : kFirstFew + 2;
  if (shape.rows <= 32) return is_short(shape) ? kFirstFew + 2 : kFirstFew + 1;
  return shape.rows < 256 ? kFirstFew + 1 : kManyWay;
}

std::optional<GemmActivation> gemm_activation(Int4Activation a) {
  switch (a) {
    case Int4Activation::none: return GemmActivation::none;
    case Int4Activation::relu: return GemmActivation::relu;
    case Int4Activation::gelu: return GemmActivation::gelu_tanh;
    case Int4Activation::gelu_erf: return GemmActivation::gelu_erf;
    default: return std::nullopt;
  }
}

/// A product of widened weights: in the type of x, or exact of a bf16 x in two parts, whose rows are twice as long and
/// meet those of x [x x].
struct InMemory {
  DType type;
  bool two_parts;
  std::int64_t k, x_rows, w_rows;  // at a time
  std::int64_t x_at;               // byte of the workspace where [x x] begins, after W

  InMemory(View x, const int4::Weight& w, const Int4Linear::Args& a)
      : type(x.dtype()), two_parts(a.exact && type == DType::bf16), k(two_parts ? 2 * w.k() : w.k()) {
    const std::int64_t row = k * dtype_bytes(type);
    x_rows = two_parts ? std::min(x.rows(), rows_that_fit(kWidenedBytes / 2, row)) : x.rows();
    x_at = two_parts ? kWidenedBytes - x_rows * row : kWidenedBytes;
    w_rows = rows_that_fit(x_at, row);
  }
};

/// Rows [first_x, first_x + x_rows) of x times rows [first_w, first_w + w_rows) of W, which lie at `widened`.
Gemm widened_product(const InMemory& m, View x, std::int64_t first_x, std::int64_t x_rows, const void* widened,
                     std::int64_t first_w, std::int64_t w_rows, View y, View bias, View residual,
                     const Int4Linear::Args& a) {
  const auto from = [&](const View& v) {
    return static_cast<std::byte*>(const_cast<void*>(v.data())) +
           (first_x * v.row_stride() + first_w) * dtype_bytes(v.dtype());
  };
  return {
      .m = x_rows,
      .n = w_rows,
      .k = m.k,
      .compute = m.type,
      .a = {static_cast<const std::byte*>(x.data()) + first_x * x.row_stride() * dtype_bytes(m.type), m.type,
            x.row_stride()},
      .b = {widened, m.type, m.k, true},
      .out = {.d = from(y),
              .dtype = y.dtype(),
              .ld = y.row_stride(),
              .bias = bias ? static_cast<const std::byte*>(bias.data()) + first_w * dtype_bytes(bias.dtype()) : nullptr,
              .bias_dtype = bias.dtype(),
              .activation = *gemm_activation(a.activation),
              .residual = residual ? from(residual) : nullptr,
              .residual_ld = residual ? residual.row_stride() : 0}};
}

/// Whether an ordinary product can follow once the weights are widened.
bool fits_in_memory(const Stream& s, View y, View x, const int4::Weight& w, View residual, const Int4Linear::Args& a) {
  if (!has_sm90a(s) || x.dtype() != y.dtype() || (residual && residual.dtype() != x.dtype()) ||
      !gemm_activation(a.activation))
    return false;
  const InMemory m(x, w, a);
  if (m.w_rows <= 0 || m.x_rows <= 0) return false;
  const auto pieces = [](View v) { return !v || (aligned(v) && v.row_stride() % 8 == 0); };
  if (m.two_parts) return w.n() % 8 == 0 && pieces(y) && pieces(residual);
  if (m.type == DType::bf16)
    return aligned(x) && x.row_stride() % 64 == 0 && w.k() % 64 == 0 && w.n() % 16 == 0 && pieces(y) &&
           pieces(residual);
  // What cuBLASLt can compute in f32 (matmul/cublas_lt.cu).
  const bool finished = a.activation != Int4Activation::none;
  return m.type == DType::f32 && a.exact && (!finished || (a.activation == Int4Activation::relu && !residual));
}
void multiply_in_memory(Stream& s, Tensor y, View x, const int4::Weight& w, View bias, View residual,
                        const Int4Linear::Args& a) {
  const InMemory m(x, w, a);
  auto* const widened = static_cast<std::byte*>(workspace(s));
  auto* const twice = widened + m.x_at;
  for (std::int64_t top = 0; top < x.rows(); top += m.x_rows) {
    const std::int64_t rows = std::min(m.x_rows, x.rows() - top);
    const std::size_t row_bytes = static_cast<std::size_t>(w.k() * dtype_bytes(m.type));
    for (std::size_t part = 0; m.two_parts && part < 2; ++part)
      check(cudaMemcpy2DAsync(twice + part * row_bytes, 2 * row_bytes, x.ptr<bf16>() + top * x.row_stride(),
                              static_cast<std::size_t>(x.row_stride()) * sizeof(bf16), row_bytes,
                              static_cast<std::size_t>(rows), cudaMemcpyDeviceToDevice, queue(s)),
            "int4_linear");
    for (std::int64_t row = 0; row < w.n(); row += m.w_rows) {
      const std::int64_t columns = std::min(m.w_rows, w.n() - row);
      int4_widen(s, widened, m.type, w, row, columns, m.two_parts);
      Gemm g = widened_product(m, x, top, rows, widened, row, columns, y, bias, residual, a);
      if (m.two_parts) g.a = {twice, m.type, m.k};
      gemm_with(s, g, gemm_choice(s, g));  // in the other half of the workspace
    }
  }
}

quant4::Product product(Tensor y, View x, const int4::Weight& w, View bias, View residual, const int4::Scratch& scratch,
                        const Int4Linear::Args& a) {
  return {y.data(),
          x.data(),
          bias.data(),
          residual.data(),
          w.packed.ptr<std::uint8_t>(),
          w.scale.ptr<bf16>(),
          w.offset ? w.offset.ptr<bf16>() : nullptr,
          a.exact ? nullptr : scratch.values.ptr<std::int8_t>(),
          scratch.steps.ptr<float>(),
          scratch.sums.ptr<std::int32_t>(),
          x.rows(),
          w.n(),
          w.k(),
          w.groups(),
          x.row_stride(),
          y.row_stride(),
          residual ? residual.row_stride() : 0,
          x.dtype(),
          y.dtype(),
          bias.dtype(),
          a.activation,
          aligned(w),
          aligned(x),
          a.constant_weights,
          !bias && !residual && a.activation == Int4Activation::none};
}

}  // namespace

Int4Shape int4_shape(const Stream& s, View y, View x, const int4::Weight& w, View residual, const Int4Linear::Args& a) {
  return {.rows = x.rows(),
          .n = w.n(),
          .k = w.k(),
          .group = w.group(),
          .exact = a.exact,
          .constant = a.constant_weights,
          .in_memory = x.rows() > int4::kBatch && fits_in_memory(s, y, x, w, residual, a),
          .in_registers = fits_widened(s, x, w),
          .two_parts = a.exact && x.dtype() == DType::bf16};
}

std::span<const Int4Way> int4_ways(const Stream& s, const Int4Shape& shape) {
  thread_local Int4Way list[kWays];
  std::size_t count = 0;
  for (int way = 0; way < kWays; ++way)
    if (serves(s, way, shape)) list[count++] = {way, kNames[way], way >= kWidenedInMemory && !shape.exact};
  return {list, count};
}

int int4_built_in(const Stream& s, const Int4Shape& shape) {
  for (int way : {picked_widened(shape), picked_wide(shape), picked_direct(shape), picked_strip(shape), picked(shape)})
    if (way >= 0 && serves(s, way, shape)) return way;
  const auto all = int4_ways(s, shape);  // a GPU with less shared memory
  require(!all.empty(), "int4_linear", "no kernel fits this GPU's {} bytes of shared memory",
          limits(s).shared_per_block);
  return all.back().id;
}

std::span<const std::string_view> int4_way_names() { return kNames; }

namespace {

/// A product as choose_way() sees it.
struct Int4Call {
  const Stream& s;
  const Int4Shape& shape;

  static std::string_view op() { return "int4_linear"; }
  static std::string_view family() { return op(); }
  auto fields() const { return fields_of(shape); }
  static std::string_view name(int id) { return kNames[id]; }
  static int number(std::string_view name) { return number_of(kNames, name); }
  bool fits(int id) const { return serves(s, id, shape); }
  int preferred(int id) const { return fits(id) ? id : -1; }
  int built_in() const { return int4_built_in(s, shape); }
  std::string words() const { return "int4_linear " + words_of(shape); }
  std::any operands() const { return shape; }
};

}  // namespace

int int4_way(const Stream& s, const Int4Shape& shape) { return choose_way(Int4Call{s, shape}); }

namespace {

/// Rows [begin, begin + count) of W, and the columns of y that they give; begin is a multiple of 16.
int4::Weight rows_of(const int4::Weight& w, std::int64_t begin, std::int64_t count) {
  const auto part = [&](const View& v, std::int64_t at) {
    return View(static_cast<const std::byte*>(v.data()) + at * dtype_bytes(v.dtype()), {{count, v[1]}, v.dtype()},
                v.device());
  };
  const std::int64_t scale = int4::scale_at(begin, w.groups());
  return {part(w.packed, int4::packed_at(begin, w.k())), part(w.scale, scale),
          w.offset ? part(w.offset, scale) : View{}};
}
template <class V> V columns_of(const V& v, std::int64_t begin, std::int64_t count) {
  if (!v) return v;
  auto* const data = static_cast<std::byte*>(const_cast<void*>(v.data())) + begin * dtype_bytes(v.dtype());
  if (v.rank() == 1) return V(data, {{count}, v.dtype()}, v.device());
  return V(data, {{v.rows(), count}, v.dtype()}, {v.row_stride(), 1}, v.device());
}

void multiply_in_registers(Stream& s, const Tensor& y, const View& x, const int4::Weight& w, const View& bias,
                           const View& residual, const Int4Linear::Args& a) {
  const auto plan = widened_plan(s, x.rows(), w.n(), w.k(), a.exact);
  if (plan.rows == w.n()) return int4_linear_widened(plan.tile, s, y, x, w, bias, residual, a);
  const auto part = [&](const WidenedTile& tile, std::int64_t begin, std::int64_t count) {
    int4_linear_widened(tile, s, columns_of(y, begin, count), x, rows_of(w, begin, count),
                        columns_of(bias, begin, count), columns_of(residual, begin, count), a);
  };
  part(plan.tile, 0, plan.rows), part(plan.rest, plan.rows, w.n() - plan.rows);
}

}  // namespace

void int4_linear_by(int way, Stream& s, Tensor y, View x, const int4::Weight& w, View bias, View residual,
                    const int4::Scratch& scratch, const Int4Linear::Args& a) {
  if (y.size() == 0 || x.size() == 0) return;
  if (way == kWidenedInMemory) return multiply_in_memory(s, y, x, w, bias, residual, a);
  if (way == kWidenedInRegisters || way == kExactInRegisters)
    return multiply_in_registers(s, y, x, w, bias, residual, a);
  const auto o = product(y, x, w, bias, residual, scratch, a);
  with_group(w.group(), [&]<int kGroup>() { quant4::run_way<kGroup>(way, o, limits(s), queue(s)); });
}

void int4_linear_widened(const WidenedTile& tile, Stream& s, Tensor y, View x, const int4::Weight& w, View bias,
                         View residual, const Int4Linear::Args& a) {
  if (y.size() == 0 || x.size() == 0) return;
  View inputs = x;
  int4::Weight weight = w;
  quant4::make_addressable(s, inputs, weight);
  quant4::multiply_widened(s, product(y, inputs, weight, bias, residual, {}, a), tile);
}

void int4_linear(Stream& s, Tensor y, View x, const int4::Weight& w, View bias, View residual,
                 const int4::Scratch& scratch, const Int4Linear::Args& a) {
  if (y.size() == 0 || x.size() == 0) return;
  int4_linear_by(int4_way(s, int4_shape(s, y, x, w, residual, a)), s, y, x, w, bias, residual, scratch, a);
}

}  // namespace hpcdl::cuda
