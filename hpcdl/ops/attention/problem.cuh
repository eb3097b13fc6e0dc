#pragma once
// Parameters of the attention kernels that accept operands of any type (.cu files).

#include "hpcdl/ops/attention/heads.cuh"

namespace hpcdl::cuda {

/// tanh without branches: an odd polynomial near 0, else 1 - 2 / (e^2x + 1).
__device__ inline float branchless_tanh(float x) {
  const float z = x * x;
  float p = ::fmaf(-5.70498872745e-3f, z, 2.06390887954e-2f);
  p = ::fmaf(p, z, -5.37397155531e-2f);
  p = ::fmaf(p, z, 1.33314422036e-1f);
  p = ::fmaf(p, z, -3.33332819422e-1f);
  const float wide = 1 - __fdividef(2.0f, exp2f(x * 2.885390081777927f) + 1);
  return ::fabsf(x) < 0.625f ? ::fmaf(p * z, x, x) : ::fabsf(x) > 20 ? copysignf(1.0f, x) : wide;
}

struct AttentionProblem {
  Heads q, k, v, out, dout, dq, dk, dv;
  float* lse = nullptr;                    // (B, H, T)
  std::int64_t queries = 0, capacity = 0;  // T, S
  int batch = 0, heads = 0, kv_heads = 0, width = 0;
  bool causal = false;
  float scale = 0;
  int window = 0;     // keys that a query sees, its own included; 0: all
  float cap = 0;      // of scores before they are scaled; 0: none
  bool part = false;  // lse is of more keys than these

  /// Of query 0 among the keys.
  __device__ std::int64_t position() const { return capacity - queries; }
  /// The number of keys that query t sees.
  __device__ std::int64_t seen(std::int64_t t) const { return causal ? position() + t + 1 : capacity; }
  __device__ int group() const { return heads / kv_heads; }
  /// The first key that a query with `seen` keys before its mask sees.
  __device__ std::int64_t first_of(std::int64_t seen) const { return window > 0 && seen > window ? seen - window : 0; }
  __device__ std::int64_t first_seen(std::int64_t t) const { return first_of(seen(t)); }
  /// Whether a query may not see the first keys.
  __device__ bool hides() const { return window > 0; }
  /// The last query that sees this key, or the last of all.
  __device__ std::int64_t last_query(std::int64_t key) const {
    const std::int64_t last = key + window - 1 - position();
    return window > 0 && last < queries - 1 ? last : queries - 1;
  }
  /// A score under the cap, and the derivative of that by the score.
  __device__ float capped(float score) const { return cap > 0 ? cap * branchless_tanh(score / cap) : score; }
  __device__ float slope(float capped_score) const {
    const float part = cap > 0 ? capped_score / cap : 0.0f;
    return 1 - part * part;
  }

  // The same by sequence, as InPages and InDocuments give it: its queries are `count` rows from `first_row` on.
  __device__ std::int64_t seen(std::int64_t, std::int64_t t) const { return seen(t); }
  __device__ std::int64_t first_of(std::int64_t, std::int64_t seen) const { return first_of(seen); }
  __device__ std::int64_t last_query(std::int64_t, std::int64_t key) const { return last_query(key); }
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
          .scale = c.scale(),
          .window = static_cast<int>(c.args.window),
          .cap = c.args.cap / c.scale(),
          .part = c.args.part()};
}
inline AttentionProblem problem_of(const AttendBackward& c) {
  auto p = problem_of(static_cast<const Attend&>(c));
  p.dout = heads_of(c.dout, p.width), p.dq = heads_of(c.dq, p.width), p.dk = heads_of(c.dk, p.width),
  p.dv = heads_of(c.dv, p.width);
  return p;
}

/// A problem whose rows hold several documents.
template <class Base> struct InDocuments : Base {
  const std::int32_t *begins, *ends;  // (B, T)

  InDocuments(const Base& base, const DocumentBounds& d)
      : Base(base), begins(d.begins.ptr<std::int32_t>()), ends(d.ends.ptr<std::int32_t>()) {}
  __device__ bool hides() const { return true; }
  __device__ std::int64_t first_of(std::int64_t b, std::int64_t seen) const {
    const std::int64_t t = seen < 1 ? 0 : (seen < this->queries ? seen : this->queries) - 1,
                       begin = begins[b * this->queries + t], in_window = Base::first_of(seen);
    return begin > in_window ? begin : in_window;
  }
  __device__ std::int64_t last_query(std::int64_t b, std::int64_t key) const {
    const std::int64_t at = key < this->queries ? key : this->queries - 1, last = ends[b * this->queries + at] - 1,
                       in_window = Base::last_query(key);
    return last < in_window ? last : in_window;
  }
};

/// f(the problem of a call), which is `base` or the same with documents.
template <class Base, class F> void with_documents(const Attend& c, const Base& base, F&& f) {
  if (c.documents) f(InDocuments<Base>(base, c.documents));
  else f(base);
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

/// A problem whose sequences are packed; every query sees all keys of its own.
template <class Base> struct InRows : Base {
  PackedHeads k, v;
  const std::int32_t* starts;

  InRows(const Base& base, const PackedAttend& c)
      : Base(base), k(base.k, c.starts), v(base.v, c.starts), starts(c.starts.ptr<std::int32_t>()) {
    this->batch = static_cast<int>(c.sequences());
    this->q.batch = this->out.batch = 0;
  }
  __device__ std::int64_t count(std::int64_t b) const { return starts[b + 1] - starts[b]; }
  __device__ std::int64_t first_row(std::int64_t b) const { return starts[b]; }
  __device__ std::int64_t seen(std::int64_t b, std::int64_t) const { return count(b); }
};

}  // namespace hpcdl::cuda
