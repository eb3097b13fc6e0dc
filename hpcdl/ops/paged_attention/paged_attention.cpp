#include "hpcdl/ops/paged_attention/paged_attention.h"

#include <algorithm>

#include "hpcdl/ops/attention/attention.h"

namespace hpcdl {

Spec PagedAttention::infer(const Spec& q, const Spec& k_pool, const Spec& v_pool, const Spec& starts,
                           const Spec& lengths, const Spec& pages, const Args& a) {
  require_float(name, q, "q");
  require_pool(name, k_pool);
  require_spec(name, "the pool of values", v_pool, k_pool);
  const auto kv_heads = k_pool[1], d = head_dim_of(k_pool);
  require(d >= 1 && d <= Attention::kMaxHeadDim, name, "head dim must be 1 .. {}, got {}", Attention::kMaxHeadDim, d);
  require(a.heads > 0 && kv_heads > 0 && a.heads % kv_heads == 0, name, "kv_heads must divide heads, got {} and {}",
          kv_heads, a.heads);
  require(q.shape.rank() == 3 && q[0] == 1 && q[2] == a.heads * d, name, "q must be (1, T, {}), got {}", a.heads * d,
          to_string(q));
  require(lengths.dtype == DType::i32 && lengths.shape.rank() == 1 && lengths[0] >= 1, name,
          "lengths must be I32 (R), got {}", to_string(lengths));
  require_spec(name, "starts", starts, {{lengths[0] + 1}, DType::i32});
  require(pages.dtype == DType::i32 && pages.shape.rank() == 2 && pages[0] == lengths[0] && pages[1] >= 1, name,
          "pages must be I32 ({}, W), got {}", lengths[0], to_string(pages));
  require(a.window >= 0 && a.cap >= 0, name, "window and cap must be positive, or 0 for none, got {} and {}", a.window,
          a.cap);
  require(a.most_queries >= 0, name, "a sequence cannot have {} queries", a.most_queries);
  return q;
}

Cost PagedAttention::cost(const Spec& q, const Spec& k_pool, const Spec& v_pool, const Spec&, const Spec& lengths,
                          const Spec& pages, const Args& a) {
  const auto keys_of = [&](std::int64_t queries) {
    const std::int64_t all = pages[1] * kPageTokens;
    return static_cast<double>(a.window > 0 ? std::min<std::int64_t>(all, a.window + queries) : all);
  };
  const auto read = static_cast<double>(lengths[0]) * keys_of(a.most(q)) / static_cast<double>(k_pool[0] * kPageTokens),
             keys = keys_of(0);
  return {.operations = 4 * keys * static_cast<double>(q.size()),
          .reads = (read - 1) * static_cast<double>(k_pool.bytes() + v_pool.bytes())};
}

namespace {
/// A call of attention() with one query for each sequence, whose shares of keys are those of this op.
std::pair<Spec, Spec> as_decoding(const Spec& q, const Spec& k_pool, const Spec& pages) {
  const auto sequences = pages[0], keys = pages[1] * kPageTokens;
  return {Spec{{sequences, 1, q[2]}, q.dtype}, Spec{{sequences, keys, k_pool[1] * head_dim_of(k_pool)}, k_pool.dtype}};
}
}  // namespace

std::array<Spec, 1> PagedAttention::scratch(const Spec& q, const Spec& k_pool, const Spec&, const Spec&, const Spec&,
                                            const Spec& pages, const Args& a) {
  if (a.most(q) > 1) return {Spec{{0}, DType::f32}};
  const auto [one, keys] = as_decoding(q, k_pool, pages);
  return Attention::scratch(one, keys, keys,
                            {.heads = a.heads, .kv_heads = static_cast<int>(k_pool[1]), .window = a.window});
}

void require_batch(const View& q, const View& k_pool, const View& starts, const View& lengths, const View& pages,
                   const PagedAttention::Args& a) {
  constexpr auto name = PagedAttention::name;
  const auto *start = starts.ptr<std::int32_t>(), *length = lengths.ptr<std::int32_t>();
  const auto sequences = lengths[0];
  require(start[0] == 0 && start[sequences] == q[1], name, "starts must run from 0 to {}, got {} .. {}", q[1], start[0],
          start[sequences]);
  for (std::int64_t r = 0; r < sequences; ++r) {
    const auto queries = start[r + 1] - start[r];
    require(queries >= 0 && queries <= a.most(q.spec()), name, "sequence {} has {} queries, expected 0 .. {}", r,
            queries, a.most(q.spec()));
    require(length[r] >= queries && length[r] <= pages[1] * kPageTokens, name,
            "sequence {} has {} keys, expected {} .. {}", r, length[r], queries, pages[1] * kPageTokens);
    for (std::int64_t i = 0; i < pages_for(length[r]); ++i) {
      const auto page = pages.ptr<std::int32_t>()[r * pages[1] + i];
      require(page >= 0 && page < k_pool[0], name, "sequence {} has page {} of a pool of {}", r, page, k_pool[0]);
    }
  }
}

}  // namespace hpcdl
