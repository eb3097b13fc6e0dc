#include "hpcdl/ops/chunk_attention/chunk_attention.h"

#include <algorithm>

#include "hpcdl/ops/fill/fill.h"

namespace hpcdl {
namespace {

/// Rows [begin, begin + count) of one dim of a tensor.
Tensor window(const View& x, int dim, std::int64_t begin, std::int64_t count) {
  if (!x) return {};
  Spec spec = x.spec();
  spec.shape[dim] = count;
  auto* const data = const_cast<std::byte*>(x.ptr<std::byte>()) + begin * x.strides()[dim] * dtype_bytes(x.dtype());
  return Tensor(data, spec, x.strides(), x.device());
}

/// One of the two chunks, as a call of attention(): its queries, and the keys that the last of them sees.
struct Chunk {
  int index;
  std::int64_t keys;

  Tensor queries(const View& x) const { return window(x, 0, index * (x ? x[0] / 2 : 0), x ? x[0] / 2 : 0); }
  Tensor seen(const View& x) const { return window(x, 1, 0, keys); }
  Spec queries(Spec x) const { return x.shape[0] /= 2, x; }
  Spec seen(Spec x) const { return x.shape[1] = keys, x; }
};

/// The chunk that sees more keys comes first: its gradients cover those of the other.
std::array<Chunk, 2> chunks_of(const Spec& q, const ChunkAttention::Args& a) {
  const Chunk first{0, a.first + q[1]}, second{1, a.second + q[1]};
  return first.keys > second.keys ? std::array{first, second} : std::array{second, first};
}

/// The sum, or the larger, of what f(q, k, v, args) says of the chunks.
template <class F> auto of_chunks(const Spec& q, const Spec& k, const Spec& v, const ChunkAttention::Args& a, F&& f) {
  const auto chunks = chunks_of(q, a);
  const auto one = [&](const Chunk& c) { return f(c.queries(q), c.seen(k), c.seen(v), a.of_chunk()); };
  return std::pair(one(chunks[0]), one(chunks[1]));
}

Cost sum(const std::pair<Cost, Cost>& of) {
  Cost both = of.first;
  return both += of.second;
}
std::array<Spec, 1> larger(const std::pair<std::array<Spec, 1>, std::array<Spec, 1>>& of) {
  return of.first[0].bytes() < of.second[0].bytes() ? of.second : of.first;
}

void zero(Stream& s, const Grad& gradient, std::int64_t begin) {
  if (!gradient || gradient.accumulate()) return;
  for (std::int64_t b = 0; b < gradient[0] && begin < gradient[1]; ++b)
    Fill::forward(s, window(window(gradient, 0, b, 1), 1, begin, gradient[1] - begin), {});
}

}  // namespace

std::array<Spec, 2> ChunkAttention::infer(const Spec& q, const Spec& k, const Spec& v, const Args& a) {
  require(q.shape.rank() == 3 && q[0] % 2 == 0, name, "needs two chunks of each sequence, (2 B, n, H*D), got {}",
          to_string(q));
  for (const auto begin : {a.first, a.second})
    require(begin >= 0 && k.shape.rank() == 3 && begin + q[1] <= k[1], name,
            "a chunk of {} tokens from token {} on lies outside the keys {}", q[1], begin, to_string(k));
  Spec of_chunk = q;
  of_chunk.shape[0] /= 2;
  Attention::infer(of_chunk, k, v, a.of_chunk());
  return {q, Spec{{q[0], a.heads, q[1]}, DType::f32}};
}

Cost ChunkAttention::cost(const Spec& q, const Spec& k, const Spec& v, const Args& a) {
  return sum(of_chunks(q, k, v, a, Attention::cost));
}
Cost ChunkAttention::backward_cost(const Spec& q, const Spec& k, const Spec& v, const Args& a) {
  return sum(of_chunks(q, k, v, a, Attention::backward_cost));
}
std::array<Spec, 1> ChunkAttention::scratch(const Spec& q, const Spec& k, const Spec& v, const Args& a) {
  return larger(of_chunks(q, k, v, a, Attention::scratch));
}
std::array<Spec, 1> ChunkAttention::backward_scratch(const Spec& q, const Spec& k, const Spec& v, const Args& a) {
  return larger(of_chunks(q, k, v, a, Attention::backward_scratch));
}

void ChunkAttention::forward(Stream& s, Tensor out, Tensor lse, View q, View k, View v, Tensor scratch, const Args& a) {
  if (q.size() == 0) return;
  for (const auto& c : chunks_of(q.spec(), a)) {
    const auto queries = c.queries(q), keys = c.seen(k), values = c.seen(v);
    const auto needed = Attention::scratch(queries.spec(), keys.spec(), values.spec(), a.of_chunk())[0];
    Attention::forward(s, c.queries(out), c.queries(lse), queries, keys, values,
                       Tensor(scratch.data(), needed, scratch.device()), a.of_chunk());
  }
}

void ChunkAttention::backward(Stream& s, Grad dq, Grad dk, Grad dv, View q, View k, View v, View out, View lse,
                              View dout, Tensor scratch, const Args& a) {
  const auto chunks = chunks_of(q.spec(), a);
  if (q.size() == 0) return zero(s, dk, 0), zero(s, dv, 0);
  for (const auto& c : chunks) {
    const bool adds = &c != &chunks[0];
    const auto queries = c.queries(q), keys = c.seen(k), values = c.seen(v);
    const auto of_keys = [&](const Grad& g) { return Grad(c.seen(g), adds ? Write::accumulate : g.write()); };
    const auto needed = Attention::backward_scratch(queries.spec(), keys.spec(), values.spec(), a.of_chunk())[0];
    if (!adds) zero(s, dk, c.keys), zero(s, dv, c.keys);
    Attention::backward(s, Grad(c.queries(dq), dq.write()), of_keys(dk), of_keys(dv), queries, keys, values,
                        c.queries(out), c.queries(lse), c.queries(dout),
                        Tensor(scratch.data(), needed, scratch.device()), a.of_chunk());
  }
}

}  // namespace hpcdl
