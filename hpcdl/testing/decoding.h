#pragma once
// What the tests of ops for decoding share: random matrices, dense and INT4, on any device.

#include <array>
#include <cmath>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/core/element.h"
#include "hpcdl/ops/matrix.h"
#include "hpcdl/rng.h"

namespace hpcdl::testing {

/// Normal numbers times `scale`, the same ones in every type but for its rounding, on the device of s. Their values are
/// those of a bf16.
inline OwnedTensor random_on(Stream& s, Shape shape, DType type, std::uint64_t stream, double scale = 1) {
  OwnedTensor made({shape, type}), there({shape, type}, s.device());
  for (std::int64_t i = 0; i < made.tensor.size(); ++i) {
    const double v = scale * Rng{11, stream}.normal(static_cast<std::uint64_t>(i));
    set_element(made.tensor, i, static_cast<float>(bf16(static_cast<float>(v))));
  }
  copy(s, there.tensor, made.tensor);
  s.synchronize();
  return there;
}

inline std::vector<float> on_host(Stream& s, const View& v) {
  OwnedTensor here(v.spec());
  copy(s, here.tensor, v);
  s.synchronize();
  std::vector<float> out(static_cast<std::size_t>(v.size()));
  for (std::int64_t i = 0; i < v.size(); ++i)
    out[static_cast<std::size_t>(i)] = static_cast<float>(element(here.tensor, i));
  return out;
}

/// |a - b| / |b|, NaN where either has one.
inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double apart = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    apart += d * d, size += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return std::sqrt(apart / size);
}

/// (n, k), whose products with normal numbers are of magnitude 1; INT4 in groups, or dense of `type` where group is 0.
struct RandomMatrix {
  std::int64_t n, k, group;
  bool asymmetric, with_bias;
  std::uint64_t stream;
  DType type = DType::f32;

  RandomMatrix(std::int64_t n_, std::int64_t k_, std::int64_t group_, bool offsets, bool bias, std::uint64_t stream_,
               DType type_ = DType::f32)
      : n(n_), k(k_), group(group_), asymmetric(offsets), with_bias(bias), stream(10 * stream_), type(type_) {}

  /// On the device of s, in `memory`.
  Matrix<View> on(Stream& s, std::vector<OwnedTensor>& memory) const {
    const auto hold = [&](OwnedTensor t) -> View { return memory.emplace_back(std::move(t)).tensor; };
    const double size = 1 / std::sqrt(static_cast<double>(k));
    Matrix<View> m;
    if (with_bias) m.bias = hold(random_on(s, {n}, DType::f32, stream));
    if (group == 0) {
      m.w = hold(random_on(s, {n, k}, type, stream + 1, size));
      return m;
    }
    OwnedTensor packed(int4::packed_spec(n, k)), there(packed.tensor.spec(), s.device());
    for (std::int64_t i = 0; i < packed.tensor.size(); ++i)
      packed.tensor.ptr<std::uint8_t>()[i] =
          static_cast<std::uint8_t>(Rng{11, stream + 1}.bits(static_cast<std::uint64_t>(i)));
    copy(s, there.tensor, packed.tensor);
    s.synchronize();
    m.w = hold(std::move(there));
    m.scale = hold(random_on(s, {n, k / group}, DType::bf16, stream + 2, size / 4));
    if (asymmetric) m.offset = hold(random_on(s, {n, k / group}, DType::bf16, stream + 3, size / 4));
    return m;
  }
};

/// What Int4Linear needs next to its operands; nothing for dense matrices.
inline std::array<OwnedTensor, 3> int4_scratch(Stream& s, const View& x, const Matrix<View>& m) {
  std::array<Spec, 3> specs{Spec{{0}, DType::i8}, Spec{{0}, DType::f32}, Spec{{0}, DType::i32}};
  if (m.quantized()) specs = Int4Linear::scratch(x.spec(), m.w.spec(), m.scale.spec(), {}, {}, {}, {});
  return {OwnedTensor(specs[0], s.device()), OwnedTensor(specs[1], s.device()), OwnedTensor(specs[2], s.device())};
}

}  // namespace hpcdl::testing
