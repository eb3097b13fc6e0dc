#include "hpcdl/ops/wire_codes/wire_codes.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "hpcdl/ops/rows.h"
#include "hpcdl/simd/vec.h"

namespace hpcdl::cpu {
namespace {

constexpr std::int64_t kBlock = WireLayout::kBlock;

/// A block of x as f32; elements beyond its end are 0.
template <class Isa, class T> void load_block(const T* x, std::int64_t count, float* to) {
  using V = simd::Vec<Isa>;
  std::int64_t i = 0;
  for (; i + V::N <= count; i += V::N) V::load(x + i).store(to + i);
  for (; i < count; ++i) to[i] = static_cast<float>(x[i]);
  std::fill(to + std::max<std::int64_t>(count, 0), to + kBlock, 0.0f);
}

/// The largest magnitude; NaN if there is one, since its bits are larger than those of any number.
float largest(const float* x) {
  std::uint32_t most = 0;
  for (std::int64_t i = 0; i < kBlock; ++i) most = std::max(most, std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffu);
  return std::bit_cast<float>(most);
}

/// Rounds to codes of at most `top`, in place, and returns their unit.
template <class Isa> float to_codes(float* x, float top) {
  using V = simd::Vec<Isa>;
  const float most = largest(x);
  if (!(most <= std::numeric_limits<float>::max())) {
    std::fill(x, x + kBlock, 0.0f);
    return std::numeric_limits<float>::quiet_NaN();
  }
  float unit = most / top;
  if (unit * top > std::numeric_limits<float>::max()) unit = std::nextafter(unit, 0.0f);
  const float inverse = unit > 0 ? 1 / unit : 0;
  const bool tiny = !(inverse <= std::numeric_limits<float>::max());  // of numbers that f32 cannot divide by
  for (std::int64_t i = 0; i < kBlock; i += V::N)
    (tiny ? V(0.0f) : min(max(round(V::load(x + i) * V(inverse)), V(-top)), V(top))).store(x + i);
  return tiny ? 0 : unit;
}

template <class Isa, class T> struct Encoding {
  WireLayout layout;
  const T* x;
  std::uint8_t* messages;

  /// Block number b of the message of a part.
  void block(std::int64_t part, std::int64_t b) const {
    alignas(64) float v[kBlock];
    const auto first = part * layout.part() + b * kBlock, left = layout.elements - first;
    load_block<Isa>(x + std::min(first, layout.elements), std::clamp<std::int64_t>(left, 0, kBlock), v);
    auto* message = messages + part * layout.bytes();
    if (layout.code == WireCode::bf16) {
      alignas(64) bf16 rounded[kBlock];
      using V = simd::Vec<Isa>;
      for (std::int64_t i = 0; i < kBlock; i += V::N) V::load(v + i).store(rounded + i);
      std::memcpy(message + b * kBlock * 2, rounded, sizeof rounded);
      return;
    }
    const float unit = to_codes<Isa>(v, layout.code == WireCode::int8 ? 127.0f : 7.0f);
    std::memcpy(message + layout.code_bytes() + b * std::int64_t{sizeof unit}, &unit, sizeof unit);
    if (layout.code == WireCode::int8) {
      auto* codes = reinterpret_cast<std::int8_t*>(message) + b * kBlock;
      for (std::int64_t i = 0; i < kBlock; ++i) codes[i] = static_cast<std::int8_t>(static_cast<int>(v[i]));
    } else {
      auto* codes = message + b * kBlock / 2;
      for (std::int64_t i = 0; i < kBlock / 2; ++i)
        codes[i] =
            static_cast<std::uint8_t>((static_cast<int>(v[2 * i]) + 8) | (static_cast<int>(v[2 * i + 1]) + 8) << 4);
    }
  }
};

/// The codes of block number b of a message. Returns their unit.
template <class Isa>
float read_block(const WireLayout& layout, const std::uint8_t* message, std::int64_t b, float* to) {
  using V = simd::Vec<Isa>;
  if (layout.code == WireCode::bf16) {
    alignas(64) bf16 values[kBlock];
    std::memcpy(values, message + b * kBlock * 2, sizeof values);
    for (std::int64_t i = 0; i < kBlock; i += V::N) V::load(values + i).store(to + i);
    return 1;
  }
  float unit = 0;
  std::memcpy(&unit, message + layout.code_bytes() + b * std::int64_t{sizeof unit}, sizeof unit);
  if (layout.code == WireCode::int8) {
    const auto* codes = reinterpret_cast<const std::int8_t*>(message) + b * kBlock;
    for (std::int64_t i = 0; i < kBlock; ++i) to[i] = static_cast<float>(codes[i]);
  } else {
    const auto* codes = message + b * kBlock / 2;
    for (std::int64_t i = 0; i < kBlock / 2; ++i) {
      to[2 * i] = static_cast<float>(static_cast<int>(codes[i] & 15) - 8);
      to[2 * i + 1] = static_cast<float>(static_cast<int>(codes[i] >> 4) - 8);
    }
  }
  return unit;
}

template <class Isa, class T> void store_block(const float* from, std::int64_t count, T* y) {
  using V = simd::Vec<Isa>;
  std::int64_t i = 0;
  for (; i + V::N <= count; i += V::N) V::load(from + i).store(y + i);
  for (; i < count; ++i) y[i] = T(from[i]);
}

/// f(block of a part, its first element) for the blocks of a part of which y has some elements, on all threads.
template <class F> void for_blocks(Pool& pool, std::int64_t blocks, F&& f) {
  parallel_for(pool, blocks, kGrainElements / kBlock, [&](std::int64_t begin, std::int64_t end) {
    for (auto b = begin; b < end; ++b) f(b);
  });
}

}  // namespace

template <class Isa> void wire_encode(Isa, Pool& pool, Tensor messages, View x, const WireArgs& a) {
  const auto layout = WireEncode::layout(x.spec(), a);
  const auto blocks = layout.part() / kBlock;
  visit_dtype(x.dtype(), [&]<class T>() {
    const Encoding<Isa, T> encoding{layout, x.ptr<T>(), messages.ptr<std::uint8_t>()};
    for_blocks(pool, blocks * a.parts, [&](std::int64_t b) { encoding.block(b / blocks, b % blocks); });
  });
}

template <class Isa> void wire_decode(Isa, Pool& pool, Tensor y, View messages, const WireDecodeArgs& a) {
  using V = simd::Vec<Isa>;
  const auto layout = WireDecode::layout(a);
  const auto blocks = layout.part() / kBlock;
  const auto* message = messages.ptr<std::uint8_t>();
  visit_dtype(y.dtype(), [&]<class T>() {
    const auto put = [&](const float* v, std::int64_t first) {
      if (const auto count = std::min(kBlock, a.elements - first); count > 0)
        store_block<Isa>(v, count, y.ptr<T>() + first);
    };
    if (!a.sum) {
      return for_blocks(pool, blocks * a.parts, [&](std::int64_t b) {
        alignas(64) float v[kBlock];
        const V unit = read_block<Isa>(layout, message + b / blocks * layout.bytes(), b % blocks, v);
        for (std::int64_t i = 0; i < kBlock; i += V::N) (V::load(v + i) * unit).store(v + i);
        put(v, b * kBlock);
      });
    }
    for_blocks(pool, blocks, [&](std::int64_t b) {
      alignas(64) float sum[kBlock] = {}, v[kBlock];
      for (std::int64_t part = 0; part < a.parts; ++part) {
        const V unit = read_block<Isa>(layout, message + part * layout.bytes(), b, v);
        for (std::int64_t i = 0; i < kBlock; i += V::N) fma(V::load(v + i), unit, V::load(sum + i)).store(sum + i);
      }
      put(sum, b * kBlock);
    });
  });
}

template void wire_encode(simd::Isa, Pool&, Tensor, View, const WireArgs&);
template void wire_decode(simd::Isa, Pool&, Tensor, View, const WireDecodeArgs&);

}  // namespace hpcdl::cpu
