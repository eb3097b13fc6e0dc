#pragma once
// Parameters of the attention kernels that accept operands of any type (.cu files).

#include "hpcdl/ops/attention/heads.cuh"

namespace hpcdl::cuda {

struct AttentionProblem {
  Heads q, k, v, out, dout, dq, dk, dv;
  float* lse = nullptr;                    // (B, H, T)
  std::int64_t queries = 0, capacity = 0;  // T, S
  int batch = 0, heads = 0, kv_heads = 0, width = 0;
  bool causal = false;
  float scale = 0;

  /// Of query 0 among the keys.
  __device__ std::int64_t position() const { return capacity - queries; }
  /// The number of keys that query t sees.
  __device__ std::int64_t seen(std::int64_t t) const { return causal ? position() + t + 1 : capacity; }
  __device__ int group() const { return heads / kv_heads; }

  // The same by sequence, as InPages gives it: its queries are `count` rows from `first_row` on.
  __device__ std::int64_t seen(std::int64_t, std::int64_t t) const { return seen(t); }
  __device__ std::int64_t count(std::int64_t) const { return queries; }
  __device__ std::int64_t first_row(std::int64_t) const { return 0; }
};

inline AttentionProblem problem_of(const Attend& c) {
  const std::int64_t width = c.width();
  return {.q = heads_of(c.q, width),
          .k = heads_of(c.k, width),
          .v = heads_of(c.v, width),
          .out = heads_of(c.out, width),
          .lse = const_cast<float*>(c.lse.ptr<float>()),
          .queries = c.q[1],
          .capacity = c.k[1],
          .batch = static_cast<int>(c.q[0]),
          .heads = c.args.heads,
          .kv_heads = c.kv_heads(),
          .width = static_cast<int>(width),
          .causal = c.args.causal,
          .scale = c.scale()};
}
inline AttentionProblem problem_of(const AttendBackward& c) {
  auto p = problem_of(static_cast<const Attend&>(c));
  p.dout = heads_of(c.dout, p.width), p.dq = heads_of(c.dq, p.width), p.dk = heads_of(c.dk, p.width),
  p.dv = heads_of(c.dv, p.width);
  return p;
}

/// A problem whose sequences are packed, with keys and values in pages.
template <class Base> struct InPages : Base {
  PagedHeads k, v;
  const std::int32_t *starts, *lengths;

  InPages(const Base& base, const PagedAttend& c)
      : Base(base),
        k(c.k, c.pages),
        v(c.v, c.pages),
        starts(c.starts.ptr<std::int32_t>()),
        lengths(c.lengths.ptr<std::int32_t>()) {
    this->batch = static_cast<int>(c.lengths[0]);
    this->q.batch = this->out.batch = 0;
  }
  __device__ std::int64_t count(std::int64_t b) const { return starts[b + 1] - starts[b]; }
  __device__ std::int64_t first_row(std::int64_t b) const { return starts[b]; }
  __device__ std::int64_t seen(std::int64_t b, std::int64_t t) const { return lengths[b] - count(b) + t + 1; }
};

}  // namespace hpcdl::cuda
