#pragma once
// Splits calls by sequences and key heads, for kernels that have room for only a part of a call.

#include <algorithm>
#include <type_traits>

#include "hpcdl/ops/attention/device_attention.h"

namespace hpcdl::cuda {

/// Sequences and key heads [first, first + count).
struct AttentionPart {
  std::int64_t sequence = 0, sequences = 1;
  int kv_head = 0, kv_heads = 1;

  /// Of an Attend or an AttendBackward.
  template <class Call> Call of(const Call& c) const {
    const int group = c.args.heads / c.kv_heads();
    const auto queries = [&](const auto& x) { return cut(x, c.width(), kv_head * group, kv_heads * group); };
    const auto keys = [&](const auto& x) { return cut(x, c.width(), kv_head, kv_heads); };
    Call p = c;
    p.args.heads = kv_heads * group, p.args.kv_heads = kv_heads;
    p.q = queries(c.q), p.out = queries(c.out), p.k = keys(c.k), p.v = keys(c.v);
    if constexpr (std::is_same_v<Call, AttendBackward>)
      p.dout = queries(c.dout), p.dq = queries(c.dq), p.dk = keys(c.dk), p.dv = keys(c.dv);
    if (c.documents) p.documents = {rows(c.documents.begins), rows(c.documents.ends)};
    if (!c.lse) return p;
    p.lse = View(c.lse.template ptr<float>() + (sequence * c.args.heads + kv_head * group) * c.q[1],
                 {{sequences, p.args.heads, c.q[1]}, DType::f32}, c.lse.device());
    return p;
  }

 private:
  View rows(const View& bounds) const {
    return {bounds.ptr<std::int32_t>() + sequence * bounds[1], {{sequences, bounds[1]}, DType::i32}, bounds.device()};
  }
  template <class X> X cut(const X& x, std::int64_t width, std::int64_t head, std::int64_t heads) const {
    if (!x) return x;
    const std::int64_t apart = x.rank() == 4 ? x.strides()[2] : width, first = sequence * x.strides()[0] + head * apart;
    auto* const data = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(x.data()) +
                                               static_cast<std::uintptr_t>(first * dtype_bytes(x.dtype())));
    const Shape shape = x.rank() == 4 ? Shape{sequences, x[1], heads, x[3]} : Shape{sequences, x[1], heads * width};
    return X(data, {shape, x.dtype()}, x.strides(), x.device());
  }
  Grad cut(const Grad& x, std::int64_t width, std::int64_t head, std::int64_t heads) const {
    return {cut(static_cast<const Tensor&>(x), width, head, heads), x.write()};
  }
};

/// f(part) for parts of at most `rows` queries over all heads, or of one key head if that alone has more.
template <class Call, class F> void in_parts(const Call& c, std::int64_t rows, F&& f) {
  const std::int64_t of_sequence = c.args.heads * c.q[1], of_head = of_sequence / c.kv_heads();
  const std::int64_t sequences = std::clamp<std::int64_t>(rows / of_sequence, 1, c.q[0]);
  const int heads =
      of_sequence <= rows ? c.kv_heads() : static_cast<int>(std::clamp<std::int64_t>(rows / of_head, 1, c.kv_heads()));
  for (std::int64_t b = 0; b < c.q[0]; b += sequences)
    for (int h = 0; h < c.kv_heads(); h += heads)
      f(AttentionPart{b, std::min(sequences, c.q[0] - b), h, std::min(heads, c.kv_heads() - h)}.of(c));
}

}  // namespace hpcdl::cuda
