#pragma once
// Causal attention of rows that hold several documents, one after another: a query sees the keys of its own document up
// to its own.
//
// q: (B, T, H*D); k, v: (B, T, Hkv*D); positions: i32 (B, T), of each token in its document. A document begins where they
// are 0, and at the beginning of a row. Everything else as in ops/attention. out: like q. lse: f32 (B, H, T).
//
// A CPU computes each document by itself, so that it has the bits that it has alone. On a GPU the kernels of attention()
// go through whole rows, of up to 2^20 tokens, and leave out blocks of keys of which no query sees any.
//
// Source: Krell et al., "Efficient sequence packing without cross-contamination", 2021.

#include "hpcdl/op.h"
#include "hpcdl/ops/attention/attention.h"

namespace hpcdl {

struct DocumentAttention {
  static constexpr std::string_view name = "document_attention";
  static constexpr OpClass kClass = OpClass::product;
  static constexpr unsigned kCasts = 0b111;
  static constexpr int kAux = 1;
  struct Args {
    int heads = 1;
    int kv_heads = 0;                    // 0: equal to heads
    float scale = 0;                     // 0: 1/sqrt(D)
    float cap = 0;                       // as in Attention::Args
    std::int64_t window = 0;             // as in Attention::Args
    bool valid() const { return true; }  // plain numbers, which infer() checks
    Attention::Args of_document() const {
      return {.heads = heads, .kv_heads = kv_heads, .causal = true, .scale = scale, .cap = cap, .window = window};
    }
  };
  static std::array<Spec, 2> infer(const Spec& q, const Spec& k, const Spec& v, const Spec& positions, const Args& a);
  /// As if every row were one document, since the lengths are not known here.
  static Cost cost(const Spec& q, const Spec& k, const Spec& v, const Spec& positions, const Args& a);
  static Cost backward_cost(const Spec& q, const Spec& k, const Spec& v, const Spec& positions, const Args& a);
  /// Of a GPU: where the document of each token begins and ends, i32 (2, B, T).
  static std::array<Spec, 1> scratch(const Spec& q, const Spec& k, const Spec& v, const Spec& positions, const Args& a);
  static void forward(Stream& s, Tensor out, Tensor lse, View q, View k, View v, View positions, Tensor bounds,
                      const Args& a);
  /// The same, and that of attention() for rows that are one document each.
  static std::array<Spec, 2> backward_scratch(const Spec& q, const Spec& k, const Spec& v, const Spec& positions,
                                              const Args& a);
  static void backward(Stream& s, Grad dq, Grad dk, Grad dv, View q, View k, View v, View positions, View out, View lse,
                       View dout, Tensor bounds, Tensor scratch, const Args& a);
  using Backward =
      Operands<dIn<0>, dIn<1>, dIn<2>, In<0>, In<1>, In<2>, In<3>, Out<0>, Out<1>, dOut<0>, Scratch<0>, Scratch<1>>;
};

namespace cuda {
void document_attention(Stream&, Tensor out, Tensor lse, View q, View k, View v, View positions, Tensor bounds,
                        const DocumentAttention::Args& a);
void document_attention_backward(Stream&, Grad dq, Grad dk, Grad dv, View q, View k, View v, View positions, View out,
                                 View lse, View dout, Tensor bounds, Tensor scratch, const DocumentAttention::Args& a);
}  // namespace cuda

template <Symbolic V>
V document_attention(const V& q, const V& k, const V& v, const V& positions, DocumentAttention::Args a) {
  return record<DocumentAttention>(a, q, k, v, positions);
}

}  // namespace hpcdl
