#include "hpcdl/models/attend_across.h"

#include "hpcdl/core/error.h"
#include "hpcdl/ops/chunk_attention/chunk_attention.h"
#include "hpcdl/ops/exchange/chunks.h"
#include "hpcdl/ops/exchange/exchange.h"
#include "hpcdl/ops/ring_attention/ring_attention.h"

namespace hpcdl::models {
namespace {

using nn::ContextShare;

/// The rows of all ranks, (B, T, C).
Var whole_sequence(const Var& x, const ContextShare& ranks, std::string_view name) {
  const bool is_dense = x.operand().strides == contiguous_strides(x.shape());
  const Var dense = is_dense ? x : record<DivideColumns>({1}, x);  // x may be columns of a wider tensor
  const Var all = gather_rows(dense, ranks.axis.with(name));
  return order_chunks(x.graph().reshape(all, {ranks.size() * x[0], x[1], x[2]}), ranks.size());
}

/// (B, T, C / p), of the whole sequence the columns of this rank.
Var columns_of_sequence(const Var& x, const ContextShare& ranks, std::string_view name) {
  const Var parts = record<DivideColumns>({ranks.size()}, x);
  return order_chunks(swap_parts(parts, ranks.axis.with(name)), ranks.size());
}

/// The inverse of columns_of_sequence().
Var rows_of_rank(const Var& x, const ContextShare& ranks, std::string_view name) {
  const auto p = ranks.size();
  const Var parts = swap_parts(divide_chunks(x, p), ranks.axis.with(name));
  const Var side_by_side = x.graph().reshape(parts, {parts[0] / p, p * parts[1], parts[2]});
  return record<JoinColumns>({p * x[2], 1, p}, side_by_side);
}

void check_heads_of_mode(const Heads& heads, int ranks) {
  for (const auto& [n, what] : {std::pair{heads.query, "heads"}, {heads.key_value, "heads of keys and values"}}) {
    if (n % ranks == 0) continue;
    fail_usage(
        "context",
        "parallel.cp_mode = \"ulysses\" divides the heads among the ranks, and {} {} of a rank are not divisible by "
        "cp {}: choose a cp that divides them, or cp_mode = \"gather\"",
        n, what, ranks);
  }
}

Var attend_around(const Var& q, const Var& k, const Var& v, const Heads& heads, const ContextShare& ranks) {
  const DType type = q.graph().compute_type(OpClass::product, q.dtype());
  return ring_attention(cast(q, type), cast(k, type), cast(v, type),
                        {.axis = ranks.axis,
                         .rank = ranks.rank,
                         .zigzag = ranks.mode == ContextShare::zigzag,
                         .heads = heads.query,
                         .kv_heads = heads.key_value,
                         .scale = heads.score_scale,
                         .cap = heads.cap,
                         .window = heads.window});
}

}  // namespace

Var attend_across(const Var& q, const Var& k, const Var& v, const Heads& heads, const ContextShare& ranks) {
  if (ranks.mode == ContextShare::ulysses) {
    check_heads_of_mode(heads, ranks.size());
    const Var y = attention(columns_of_sequence(q, ranks, "queries"), columns_of_sequence(k, ranks, "keys"),
                            columns_of_sequence(v, ranks, "values"),
                            {.heads = heads.query / ranks.size(),
                             .kv_heads = heads.key_value / ranks.size(),
                             .causal = true,
                             .scale = heads.score_scale,
                             .cap = heads.cap,
                             .window = heads.window});
    return rows_of_rank(y, ranks, "attention");
  }
  if (ranks.goes_around()) return attend_around(q, k, v, heads, ranks);
  return chunk_attention(q, whole_sequence(k, ranks, "keys"), whole_sequence(v, ranks, "values"),
                         {.heads = heads.query,
                          .kv_heads = heads.key_value,
                          .first = ranks.chunk(0) * q[1],
                          .second = ranks.chunk(1) * q[1],
                          .scale = heads.score_scale,
                          .cap = heads.cap,
                          .window = heads.window});
}

}  // namespace hpcdl::models
