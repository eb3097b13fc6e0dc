#pragma once
// Causal attention of two chunks of every sequence: of n tokens each, from `first` and from `second` on. Each query sees
// the keys of the whole sequence up to its own position.
//
// q: (2 B, n, H*D), the first chunk of all B sequences and then the second of all; k, v: (B, S, Hkv*D), in the order of
// positions; everything else as in ops/attention, whose kernels compute each chunk with the keys that it sees. out: like
// q. lse: (2 B, H, n) f32.
//
// Source: Grattafiori et al., "The Llama 3 herd of models", 2024, section 3.3.2.

#include "hpcdl/op.h"
#include "hpcdl/ops/attention/attention.h"

namespace hpcdl {

struct ChunkAttention {
  static constexpr std::string_view name = "chunk_attention";
  static constexpr OpClass kClass = OpClass::product;
  static constexpr unsigned kCasts = 0b111;
  static constexpr int kAux = 1;
  struct Args {
    int heads = 1;
    int kv_heads = 0;  // 0: equal to heads
    std::int64_t first = 0, second = 0;
    float scale = 0;                     // 0: 1/sqrt(D)
    float cap = 0;                       // as in Attention::Args
    std::int64_t window = 0;             // as in Attention::Args
    bool valid() const { return true; }  // plain numbers, which infer() checks
    Attention::Args of_chunk() const { return {heads, kv_heads, true, scale, cap, window}; }
  };
  static std::array<Spec, 2> infer(const Spec& q, const Spec& k, const Spec& v, const Args& a);
  static Cost cost(const Spec& q, const Spec& k, const Spec& v, const Args& a);
  static Cost backward_cost(const Spec& q, const Spec& k, const Spec& v, const Args& a);
  /// That of attention() for the chunk that needs more.
  static std::array<Spec, 1> scratch(const Spec& q, const Spec& k, const Spec& v, const Args& a);
  static std::array<Spec, 1> backward_scratch(const Spec& q, const Spec& k, const Spec& v, const Args& a);
  static void forward(Stream& s, Tensor out, Tensor lse, View q, View k, View v, Tensor scratch, const Args& a);
  static void backward(Stream& s, Grad dq, Grad dk, Grad dv, View q, View k, View v, View out, View lse, View dout,
                       Tensor scratch, const Args& a);
  using Backward = Operands<dIn<0>, dIn<1>, dIn<2>, In<0>, In<1>, In<2>, Out<0>, Out<1>, dOut<0>, Scratch<0>>;
};

template <Symbolic V> V chunk_attention(const V& q, const V& k, const V& v, ChunkAttention::Args a) {
  return record<ChunkAttention>(a, q, k, v);
}

}  // namespace hpcdl
