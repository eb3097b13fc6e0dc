#pragma once
// y[i] = W[ids[i]]: rows of a matrix of 4-bit weights, widened. For models whose output matrix is also the embedding.
//
// ids: i32 (...); W (V, K): packed u8 (V, K/2), scale bf16 (V, K/G), offset bf16 or absent (int4_layout.h); y: (..., K)
// of Args::dtype. An id outside 0 .. V-1 gives a row of NaN: an op cannot inspect data when recorded, and must not read
// outside of its operands when run.

#include "hpcdl/ops/int4_linear/int4_linear.h"
#include "hpcdl/ops/places.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

struct Int4Embedding {
  static constexpr std::string_view name = "int4_embedding";
  struct Args {
    DType dtype = DType::f32;
  };
  static Spec infer(const Spec& ids, const Spec& packed, const Spec& scale, const Spec& offset, const Spec& positions,
                    const Spec& places, const Args& a) {
    require(ids.dtype == DType::i32 && ids.shape.rank() < Shape::kMaxRank, name, "ids must be I32, got {}",
            to_string(ids));
    require(a.dtype == DType::f32 || a.dtype == DType::bf16 || a.dtype == DType::f16, name,
            "output must be F32, BF16 or F16, got {}", dtype_name(a.dtype));
    int4::require_weight(name, packed, scale, offset);
    Spec y{ids.shape, a.dtype};
    y.shape.push_back(2 * packed[1]);
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
  static Cost cost(const Spec& ids, const Spec& packed, const Spec& scale, const Spec& offset, const Spec& positions,
                   const Spec&, const Args&) {
    const auto rows = static_cast<double>(ids.size());
    const auto weights = static_cast<double>(packed.bytes() + scale.bytes() + offset.bytes());
    const auto unread = positions ? (positions[0] - ids[-1]) * positions[1] * dtype_bytes(positions.dtype) : 0;
    return {.operations = 4 * rows * static_cast<double>(packed[1]),
            .reads = (rows / static_cast<double>(packed[0]) - 1) * weights - static_cast<double>(unread)};
  }
  static void forward(Stream& s, Tensor y, View ids, View packed, View scale, View offset, View positions, View places,
                      const Args& a);
};

namespace cpu {
template <class Isa>
void int4_embedding(Isa, Pool&, Tensor y, View ids, const int4::Weight& w, View positions, View places);
}
namespace cuda {
void int4_embedding(Stream&, Tensor y, View ids, const int4::Weight& w, View positions, View places);
}

inline void Int4Embedding::forward(Stream& s, Tensor y, View ids, View packed, View scale, View offset, View positions,
                                   View places, const Args&) {
  const int4::Weight w{packed, scale, offset};
  on(
      s, [&](auto isa, Pool& pool) { cpu::int4_embedding(isa, pool, y, ids, w, positions, places); },
      [&](auto& q) { cuda::int4_embedding(q, y, ids, w, positions, places); });
}

/// offset, positions and places, as of embedding.h, may be absent (default Vars).
template <Symbolic V>
V int4_embedding(const V& ids, const V& packed, const V& scale, const V& offset, const V& positions = {},
                 Int4Embedding::Args a = {}, const V& places = {}) {
  return record<Int4Embedding>(a, ids, packed, scale, offset, positions, places);
}

}  // namespace hpcdl
