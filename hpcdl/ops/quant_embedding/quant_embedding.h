#pragma once
// y[i] = W[ids[i]]: decoded rows of a quantised matrix, for models whose embedding is quantised.
//
// ids: i32 (...); W (V, K), of a format of quant_format.h; positions (at least T, K), of which row i % T is added, or row
// places[i]: as of embedding.h; y: (..., K) of Args::dtype. An id outside 0 .. V-1 gives a row of NaN: an op cannot
// inspect data when recorded, and must not read outside of its operands when run.

#include "hpcdl/op.h"
#include "hpcdl/ops/places.h"
#include "hpcdl/ops/quant_linear/quant_format.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

struct QuantEmbedding {
  static constexpr std::string_view name = "quant_embedding";
  struct Args {
    QuantFormat format = QuantFormat::nf4;
    DType dtype = DType::f32;
  };
  static Spec infer(const Spec& ids, const Spec& codes, const Spec& scale, const Spec& outer, const Spec& table,
                    const Spec& positions, const Spec& places, const Args& a) {
    require(ids.dtype == DType::i32 && ids.shape.rank() < Shape::kMaxRank, name, "ids must be I32, got {}",
            to_string(ids));
    require(a.dtype == DType::f32 || a.dtype == DType::bf16 || a.dtype == DType::f16, name,
            "output must be F32, BF16 or F16, got {}", dtype_name(a.dtype));
    Spec y{ids.shape, a.dtype};
    y.shape.push_back(require_quantized(name, a.format, {codes, scale, outer, table}));
    if (positions) {
      require_float(name, positions, "positions");
      require(ids.shape.rank() > 0 && positions.shape.rank() == 2 && positions[1] == y[-1] &&
                  (places || positions[0] >= ids[-1]),
              name, "positions must be (at least T, {}) for ids {}, got {}", y[-1], to_string(ids),
              to_string(positions));
    }
    if (places) require_positions_of(name, places, ids.size());
    return y;
  }
  /// One row of the weights per id, and T rows of the positions.
  static Cost cost(const Spec& ids, const Spec& codes, const Spec& scale, const Spec& outer, const Spec& table,
                   const Spec& positions, const Spec&, const Args& a) {
    const auto rows = static_cast<double>(ids.size());
    const auto weights = static_cast<double>(codes.bytes() + scale.bytes() + outer.bytes() + table.bytes());
    const auto unread = positions ? (positions[0] - ids[-1]) * positions[1] * dtype_bytes(positions.dtype) : 0;
    const auto k = require_quantized(name, a.format, {codes, scale, outer, table});
    return {.operations = 2 * rows * static_cast<double>(k),
            .reads = (rows / static_cast<double>(codes[0]) - 1) * weights - static_cast<double>(unread)};
  }
  static void forward(Stream& s, Tensor y, View ids, View codes, View scale, View outer, View table, View positions,
                      View places, const Args& a);
};

namespace cpu {
template <class Isa>
void quant_embedding(Isa, Pool&, Tensor y, View ids, const QuantMatrix& w, View positions, View places);
}
namespace cuda {
void quant_embedding(Stream&, Tensor y, View ids, const QuantMatrix& w, View positions, View places);
}

inline void QuantEmbedding::forward(Stream& s, Tensor y, View ids, View codes, View scale, View outer, View table,
                                    View positions, View places, const Args& a) {
  const QuantMatrix w{a.format, {codes, scale, outer, table}};
  on(
      s, [&](auto isa, Pool& pool) { cpu::quant_embedding(isa, pool, y, ids, w, positions, places); },
      [&](auto& q) { cuda::quant_embedding(q, y, ids, w, positions, places); });
}

/// What the format does not have, positions and places may be absent (default Vars).
template <Symbolic V>
V quant_embedding(const V& ids, const QuantParts<V>& w, const V& positions, const V& places, QuantEmbedding::Args a) {
  return record<QuantEmbedding>(a, ids, w.codes, w.scale, w.outer, w.table, positions, places);
}

}  // namespace hpcdl
