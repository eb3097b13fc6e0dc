#pragma once
// Numbers as few bytes, for links between ranks that are slower than the arithmetic. Source: Wang et al., "ZeRO++:
// extremely efficient collective communication for giant model training", 2023.
//
// x, of any shape, is cut into `parts` equal parts of whole blocks of kBlock elements, one for each receiver; elements
// beyond the end of x are 0. A part becomes a message:
//
//   bf16   the values, rounded to nearest even
//   int8   a signed byte for each value, then an f32 for each block
//   int4   half a byte for each value, the lower half first, with 8 added; then the same
//
// The f32 of a block is its largest magnitude, divided by the largest code (127 or 7); a value is its code times that.
// A block with a number that is not finite becomes NaN. On a CPU. No gradient.

#include <cstdint>
#include <string_view>

#include "hpcdl/op.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

enum class WireCode : std::uint8_t { none, bf16, int8, int4 };
constexpr std::string_view wire_code_name(WireCode c) {
  constexpr std::string_view names[] = {"none", "bf16", "int8", "int4"};
  return names[static_cast<int>(c)];
}

/// How `elements` numbers lie in messages.
struct WireLayout {
  static constexpr std::int64_t kBlock = 256;
  std::int64_t elements = 0;
  std::int32_t parts = 1;
  WireCode code = WireCode::int8;

  /// Elements of a part.
  std::int64_t part() const { return (elements + parts * kBlock - 1) / (parts * kBlock) * kBlock; }
  std::int64_t code_bytes() const {
    return code == WireCode::bf16 ? 2 * part() : code == WireCode::int8 ? part() : part() / 2;
  }
  /// Of one message.
  std::int64_t bytes() const {
    return code_bytes() + (code == WireCode::bf16 ? 0 : part() / kBlock * std::int64_t{sizeof(float)});
  }
};

struct WireArgs {
  std::int32_t parts = 1;
  WireCode code = WireCode::int8;
  bool valid() const { return parts >= 1 && parts <= 1 << 20 && code >= WireCode::bf16 && code <= WireCode::int4; }
};

/// x, f32, bf16 or f16, to (parts, bytes) u8.
struct WireEncode {
  static constexpr std::string_view name = "wire_encode";
  using Args = WireArgs;
  static WireLayout layout(const Spec& x, const Args& a) { return {x.shape.size(), a.parts, a.code}; }
  static Spec infer(const Spec& x, const Args& a) {
    require_float(name, x, "x");
    require(a.valid(), name, "expected at least one part, and a code of 4, 8 or 16 bits");
    return {{a.parts, layout(x, a).bytes()}, DType::u8};
  }
  static Cost cost(const Spec& x, const Args&) { return {.operations = 3 * static_cast<double>(x.size())}; }
  static void forward(Stream& s, Tensor messages, View x, const Args& a);
};

struct WireDecodeArgs {
  std::int64_t elements = 0;  // of y
  std::int32_t parts = 1;
  WireCode code = WireCode::int8;
  DType to = DType::f32;
  bool sum = false;
};

/// Messages (parts, bytes) u8 to y, of one dim: part after part; or with `sum`, f32, the sum of all parts in their order,
/// of which y may have less than a part.
struct WireDecode {
  static constexpr std::string_view name = "wire_decode";
  using Args = WireDecodeArgs;
  static WireLayout layout(const Args& a) { return {a.sum ? a.elements * a.parts : a.elements, a.parts, a.code}; }
  static Spec infer(const Spec& messages, const Args& a) {
    require(WireArgs{a.parts, a.code}.valid() && a.elements >= 0, name,
            "expected at least one part, and a code of 4, 8 or 16 bits");
    require(a.to == DType::f32 || (!a.sum && (a.to == DType::bf16 || a.to == DType::f16)), name,
            "gives f32, and without a sum also bf16 or f16, not {}", dtype_name(a.to));
    require(messages == Spec{{a.parts, layout(a).bytes()}, DType::u8}, name,
            "expected messages of {} bytes from each of {} ranks, got {}", layout(a).bytes(), a.parts,
            to_string(messages));
    return {{a.elements}, a.to};
  }
  static Cost cost(const Spec&, const Args& a) {
    return {.operations = 2 * static_cast<double>(a.elements) * (a.sum ? a.parts : 1)};
  }
  static void forward(Stream& s, Tensor y, View messages, const Args& a);
};

namespace cpu {
template <class Isa> void wire_encode(Isa, Pool&, Tensor messages, View x, const WireArgs& a);
template <class Isa> void wire_decode(Isa, Pool&, Tensor y, View messages, const WireDecodeArgs& a);
}  // namespace cpu

inline void WireEncode::forward(Stream& s, Tensor messages, View x, const Args& a) {
  on(s, [&](auto isa, Pool& pool) { cpu::wire_encode(isa, pool, messages, x, a); });
}
inline void WireDecode::forward(Stream& s, Tensor y, View messages, const Args& a) {
  on(s, [&](auto isa, Pool& pool) { cpu::wire_decode(isa, pool, y, messages, a); });
}

template <Symbolic V> V wire_encode(const V& x, const WireArgs& a) { return record<WireEncode>(a, x); }
template <Symbolic V> V wire_decode(const V& messages, const WireDecodeArgs& a) {
  return record<WireDecode>(a, messages);
}

}  // namespace hpcdl
