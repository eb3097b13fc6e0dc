#include "hpcdl/quant/int4.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/graph.h"
#include "hpcdl/ops/int4_embedding/int4_embedding.h"
#include "hpcdl/ops/matrix.h"
#include "hpcdl/quant/codecs.h"
#include "hpcdl/quant/compensations.h"
#include "hpcdl/quant/int4_fit.h"
#include "hpcdl/quant/int4_part.h"
#include "hpcdl/simd/isa.h"

namespace hpcdl::quant {

Int4Matrix::Int4Matrix(std::int64_t n, std::int64_t k, const nn::CodecOptions& options)
    : packed(int4::packed_spec(n, k)), scale(int4::scale_spec(n, k, options.group)) {
  if (!options.symmetric) offset = OwnedTensor(int4::scale_spec(n, k, options.group));
}

Int4Matrix quantize_int4(Pool& pool, View w, const nn::CodecOptions& options, bool transposed, nn::RoundingError* error,
                         std::string_view name, std::span<const float> importance) {
  require(w.rank() == 2 && (w.dtype() == DType::f32 || w.dtype() == DType::bf16 || w.dtype() == DType::f16), "quant",
          "{}: expected a matrix of F32, BF16 or F16, got {}", name, to_string(w.spec()));
  require(w.rows_are_uniform(), "quant", "{}: rows must be dense", name);
  const std::int64_t n = w[transposed ? 1 : 0], k = w[transposed ? 0 : 1];
  require_fit(int4_codec, name, k, options);
  require(importance.empty() || std::ssize(importance) == k, "quant",
          "{}: expected the importance of {} inputs, got {} numbers", name, k, importance.size());
  Int4Matrix out(n, k, options);
  std::vector<Int4TileStats> stats(static_cast<std::size_t>(int4::tiles(n)));
  const Int4Target to{.packed = out.packed.tensor,
                      .scale = out.scale.tensor,
                      .offset = out.offset.tensor,
                      .n = n,
                      .k = k,
                      .group = options.group,
                      .search = options.search,
                      .importance = importance.empty() ? nullptr : importance.data()};
  simd::with_isa([&](auto isa) { cpu::quantize_int4(isa, pool, to, w, transposed, stats.data()); });
  nn::RoundingError sum{.count = n * k};
  for (const auto& s : stats) {
    if (s.bad_row >= 0) {
      fail("quant", "{}: weight [{}, {}] is not a finite number: damaged file, or training that diverged", name,
           transposed ? s.bad_k : s.bad_row, transposed ? s.bad_row : s.bad_k);
    }
    sum.squared += s.squared;
    sum.origin += s.origin;
    sum.largest = std::max(sum.largest, s.largest);
  }
  if (error) *error = sum;
  return out;
}

void dequantize_int4(Pool& pool, Tensor out, const int4::Weight& w) {
  int4::require_weight("quant", w.packed.spec(), w.scale.spec(), w.offset.spec());
  require(out.shape() == Shape({w.n(), w.k()}), "quant", "dequantised weights need {}, got {}",
          to_string(Shape{w.n(), w.k()}), to_string(out.shape()));
  std::vector<std::int32_t> rows(static_cast<std::size_t>(w.n()));
  std::iota(rows.begin(), rows.end(), 0);
  Stream s(pool);
  Int4Embedding::forward(s, out, View(rows.data(), {{w.n()}, DType::i32}), w.packed, w.scale, w.offset, {}, {},
                         {.dtype = out.dtype()});
}

namespace {
/// Calls f(index of the byte, index of its low value); the index of the high value is larger by 4.
template <class F> void for_bytes(Pool& pool, std::int64_t n, std::int64_t k, F&& f) {
  parallel_for(pool, int4::tiles(n), 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t tile = begin; tile < end; ++tile) {
      const std::int64_t first = tile * int4::kTileRows, rows = int4::tile_rows(first, n);
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t i = 0; i < k; i += i % 8 == 3 ? 5 : 1)
          f(int4::packed_at(first, k) + int4::byte_of(rows, r, i), (first + r) * k + i);
    }
  });
}

void require_packed(const View& packed, const View& q) {
  require(q.rank() == 2 && q.dtype() == DType::u8 && q[1] % 8 == 0 && q.is_contiguous(), "quant",
          "4-bit values must be U8 (N, K) with K a multiple of 8, got {}", to_string(q.spec()));
  require(packed.spec() == int4::packed_spec(q[0], q[1]), "quant", "packed values of {} must be {}, got {}",
          to_string(q.spec()), to_string(int4::packed_spec(q[0], q[1])), to_string(packed.spec()));
}
}  // namespace

void pack_int4(Pool& pool, Tensor packed, View q) {
  require_packed(packed, q);
  const auto* from = q.ptr<std::uint8_t>();
  const auto* large = std::find_if(from, from + q.size(), [](std::uint8_t v) { return v > 15; });
  require(large == from + q.size(), "quant", "expected 4-bit values 0 .. 15, got {}",
          large == from + q.size() ? 0 : *large);
  auto* to = packed.ptr<std::uint8_t>();
  for_bytes(pool, q[0], q[1], [&](std::int64_t byte, std::int64_t at) {
    to[byte] = static_cast<std::uint8_t>(from[at] | from[at + 4] << 4);
  });
}

void unpack_int4(Pool& pool, Tensor q, View packed) {
  require_packed(packed, q);
  const auto* from = packed.ptr<std::uint8_t>();
  auto* to = q.ptr<std::uint8_t>();
  for_bytes(pool, q[0], q[1], [&](std::int64_t byte, std::int64_t at) {
    to[at] = from[byte] & 15;
    to[at + 4] = from[byte] >> 4;
  });
}

namespace {

using Vars = nn::Codec::Parts<Var>;

constexpr std::int64_t kGroups[] = {32, 64, 128};

class Int4Rounder final : public Rounder {
 public:
  explicit Int4Rounder(const int4::Weight& w) : w_(w), n_(w.n()), k_(w.k()), group_(w.group()) {}

  float round(std::int64_t row, std::int64_t column, float v) override {
    const auto first = row / int4::kTileRows * int4::kTileRows, rows = int4::tile_rows(first, n_);
    const auto of_group = int4::scale_at(first, k_ / group_) + column / group_ * rows + row - first;
    const auto at = [&](const View& t) { return t ? static_cast<float>(t.ptr<bf16>()[of_group]) : 0.0f; };
    const float scale = at(w_.scale), offset = at(w_.offset);
    const float p = scale != 0 ? std::clamp(std::nearbyint((v - offset) / scale), -8.0f, 7.0f) : 0.0f;
    auto& byte = const_cast<std::uint8_t&>(
        w_.packed.ptr<std::uint8_t>()[int4::packed_at(first, k_) + int4::byte_of(rows, row - first, column)]);
    const int code = static_cast<int>(p) + 8;
    byte = static_cast<std::uint8_t>(int4::is_high(column) ? (byte & 0x0f) | code << 4 : (byte & 0xf0) | code);
    return scale * p + offset;
  }

 private:
  int4::Weight w_;
  std::int64_t n_, k_, group_;
};

constexpr Int4Activation kActivations[] = {Int4Activation::none, Int4Activation::relu, Int4Activation::gelu,
                                           Int4Activation::gelu_erf};  // by Activation

Compensation::Parts to_int4(Pool& pool, const MatrixSource& s, const nn::CodecOptions& o, nn::RoundingError& error) {
  auto q = quantize_int4(pool, s.w, o, s.transposed, &error, s.name, s.importance);
  return {std::move(q.packed), std::move(q.scale), std::move(q.offset)};
}

}  // namespace

const nn::Codec int4_codec{
    .name = "int4",
    .bits = 4,
    .groups = kGroups,
    .names = {{{".packed", ".int4"}, {".scale", ".int4_scale"}, {".offset", ".int4_offset"}}},
    .activations_on_gpu = DType::bf16,  // int4_linear rounds them to 8 bits anyway
    .specs =
        [](std::int64_t out, std::int64_t in, const nn::CodecOptions& o) {
          const Spec scale = int4::scale_spec(out, in, o.group);
          return nn::Codec::Parts<Spec>{int4::packed_spec(out, in), scale, o.symmetric ? Spec() : scale};
        },
    .multiply =
        [](const Vars& w, const Var& x, const Var& bias, const Var& residual, Activation a, DType out) {
          return int4_linear(x, w[0], w[1], w[2], bias, residual,
                             {.activation = kActivations[static_cast<int>(a)], .out = out, .constant_weights = true});
        },
    .take =
        [](const nn::Codec::Parts<View>& w, const nn::MatrixPart& part, std::string_view name) {
          auto taken = take_int4({w[0], w[1], w[2]}, part, name);
          return nn::Codec::Parts<OwnedTensor>{std::move(taken.packed), std::move(taken.scale),
                                               std::move(taken.offset)};
        },
    .rows = [](const Vars& w, const Var& ids, const Var& positions, const Var& places,
               DType out) { return int4_embedding(ids, w[0], w[1], w[2], positions, {.dtype = out}, places); },
    .matrix = [](const Vars& w, const Var& bias) { return Matrix<Var>{w[0], w[1], w[2], bias}; },
    .quantize = [](Pool& pool, const View& w, const nn::CodecOptions& o, bool transposed, nn::RoundingError& error,
                   std::string_view name) { return to_int4(pool, {w, transposed, name}, o, error); },
};

const Compensation int4_compensation{
    .codec = &int4_codec,
    .quantize = to_int4,
    .rounder = [](const Compensation::Parts& parts, const nn::CodecOptions&) -> std::unique_ptr<Rounder> {
      return std::make_unique<Int4Rounder>(int4::Weight{parts[0].tensor, parts[1].tensor, parts[2].tensor});
    },
};

}  // namespace hpcdl::quant
