#include "hpcdl/ops/document_attention/document_attention.h"

namespace hpcdl {
namespace {

/// Tokens [begin, end) of a row.
struct Document {
  std::int64_t row, begin, end;

  std::int64_t tokens() const { return end - begin; }
  Spec of(Spec all) const { return all.shape[0] = 1, all.shape[1] = tokens(), all; }
  Tensor of(const View& all) const {
    if (!all) return {};
    const auto at = row * all.strides()[0] + begin * all.strides()[1];
    return {const_cast<std::byte*>(all.ptr<std::byte>()) + at * dtype_bytes(all.dtype()), of(all.spec()), all.strides(),
            all.device()};
  }
  Grad of(const Grad& all) const { return {of(static_cast<const View&>(all)), all.write()}; }
  /// The statistics of its queries, from (B, H, T).
  Tensor lse_of(const View& all) const {
    if (!all) return {};
    auto* const first = const_cast<float*>(all.ptr<float>()) + row * all.strides()[0] + begin;
    return {first, {{1, all[1], tokens()}, DType::f32}, all.strides(), all.device()};
  }
};

template <class F> void for_each_document(const View& positions, F&& f) {
  const auto rows = positions[0], tokens = positions[1];
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto* const at = positions.ptr<std::int32_t>() + row * positions.row_stride();
    for (std::int64_t begin = 0, end = 0; begin < tokens; begin = end) {
      for (end = begin + 1; end < tokens && at[end] != 0;) ++end;
      f(Document{row, begin, end});
    }
  }
}

}  // namespace

std::array<Spec, 2> DocumentAttention::infer(const Spec& q, const Spec& k, const Spec& v, const Spec& positions,
                                             const Args& a) {
  require(q.shape.rank() == 3 && k.shape.rank() == 3 && k[1] == q[1], name,
          "q, k and v must be (B, T, heads*D), got {} and {}", to_string(q), to_string(k));
  Attention::infer(q, k, v, a.of_document());
  require_spec(name, "positions", positions, {{q[0], q[1]}, DType::i32});
  return {q, Spec{{q[0], a.heads, q[1]}, DType::f32}};
}

Cost DocumentAttention::cost(const Spec& q, const Spec& k, const Spec& v, const Spec&, const Args& a) {
  return Attention::cost(q, k, v, a.of_document());
}
Cost DocumentAttention::backward_cost(const Spec& q, const Spec& k, const Spec& v, const Spec&, const Args& a) {
  return Attention::backward_cost(q, k, v, a.of_document());
}

std::array<Spec, 1> DocumentAttention::scratch(const Spec&, const Spec&, const Spec&, const Spec& positions,
                                               const Args&) {
  return {Spec{{2, positions[0], positions[1]}, DType::i32}};
}
std::array<Spec, 2> DocumentAttention::backward_scratch(const Spec& q, const Spec& k, const Spec& v,
                                                        const Spec& positions, const Args& a) {
  return {scratch(q, k, v, positions, a)[0], Attention::backward_scratch(q, k, v, a.of_document())[0]};
}

void DocumentAttention::forward(Stream& s, Tensor out, Tensor lse, View q, View k, View v, View positions,
                                Tensor bounds, const Args& a) {
  on(
      s,
      [&](auto, Pool&) {
        for_each_document(positions, [&](const Document& d) {
          Attention::forward(s, d.of(out), d.lse_of(lse), d.of(q), d.of(k), d.of(v), {}, a.of_document());
        });
      },
      [&](auto& queue) { cuda::document_attention(queue, out, lse, q, k, v, positions, bounds, a); });
}

void DocumentAttention::backward(Stream& s, Grad dq, Grad dk, Grad dv, View q, View k, View v, View positions, View out,
                                 View lse, View dout, Tensor bounds, Tensor scratch, const Args& a) {
  on(
      s,
      [&](auto, Pool&) {
        for_each_document(positions, [&](const Document& d) {
          const auto needed =
              Attention::backward_scratch(d.of(q.spec()), d.of(k.spec()), d.of(v.spec()), a.of_document())[0];
          Attention::backward(s, d.of(dq), d.of(dk), d.of(dv), d.of(q), d.of(k), d.of(v), d.of(out), d.lse_of(lse),
                              d.of(dout), Tensor(scratch.data(), needed, scratch.device()), a.of_document());
        });
      },
      [&](auto& queue) {
        cuda::document_attention_backward(queue, dq, dk, dv, q, k, v, positions, out, lse, dout, bounds, scratch, a);
      });
}

}  // namespace hpcdl
