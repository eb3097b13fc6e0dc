#pragma once
// Parameters of the attention kernels that accept operands of any type (.cu files).

#include "hpcdl/ops/attention/heads.cuh"

namespace hpcdl::cuda {

struct AttentionProblem {
  Heads q, k, v, out, dout, dq, dk, dv;
  float* lse = nullptr;  // (B, H, T)
  const StepParams* params = nullptr;
  std::int64_t queries = 0, capacity = 0;  // T, S
  int batch = 0, heads = 0, kv_heads = 0, width = 0;
  bool causal = false, cached = false;
  float scale = 0;

  __device__ std::int64_t position() const { return cached ? params->position : capacity - queries; }
  __device__ std::int64_t keys() const { return cached ? params->position + queries : capacity; }
  /// The number of keys that query t sees.
  __device__ std::int64_t seen(std::int64_t t) const { return causal || cached ? position() + t + 1 : keys(); }
  __device__ int group() const { return heads / kv_heads; }
};

inline AttentionProblem problem_of(const Stream& s, const Attend& c) {
  const std::int64_t width = c.width();
  return {.q = heads_of(c.q, width),
          .k = heads_of(c.k, width),
          .v = heads_of(c.v, width),
          .out = heads_of(c.out, width),
          .lse = const_cast<float*>(c.lse.ptr<float>()),
          .params = s.kernel_params(),
          .queries = c.q[1],
          .capacity = c.k[1],
          .batch = static_cast<int>(c.q[0]),
          .heads = c.args.heads,
          .kv_heads = c.kv_heads(),
          .width = static_cast<int>(width),
          .causal = c.args.causal,
          .cached = c.args.cached,
          .scale = c.scale()};
}
inline AttentionProblem problem_of(const Stream& s, const AttendBackward& c) {
  auto p = problem_of(s, static_cast<const Attend&>(c));
  p.dout = heads_of(c.dout, p.width), p.dq = heads_of(c.dq, p.width), p.dk = heads_of(c.dk, p.width),
  p.dv = heads_of(c.dv, p.width);
  return p;
}

}  // namespace hpcdl::cuda
