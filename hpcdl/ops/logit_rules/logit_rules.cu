#include "hpcdl/cuda/launch.h"
#include "hpcdl/ops/logit_rules/logit_rules.h"

// A row's first block changes the tokens of its lists, the others those that its mask excludes. Where both meet, both
// write -infinity, so that their order does not matter.

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 256, kEach = 16;  // tokens of a thread that applies a mask
constexpr int kOfBlock = kThreads * kEach;

struct Problem {
  float* logits;
  std::int64_t stride;
  int cols, words;
  const LogitRules::Rule* rules;
  const std::int32_t* starts;
  const LogitChange* changes;
  const std::uint32_t* masks;
};

__device__ bool allowed(const std::uint32_t* mask, int id) {
  return mask == nullptr || (mask[id / 32] >> id % 32 & 1u);
}

/// -infinity for what a mask excludes, unless the model is broken there.
__device__ float excluded(float x) { return x < __builtin_inff() ? -__builtin_inff() : x; }

/// Rounds each step, as a CPU does.
__device__ float penalised(float x, const LogitPenalties& p, int times) {
  x = x > 0 ? __fdiv_rn(x, p.repetition) : __fmul_rn(x, p.repetition);
  if (times > 0) x = __fsub_rn(x, __fadd_rn(p.presence, __fmul_rn(static_cast<float>(times), p.frequency)));
  return x;
}

__device__ void change_listed(const Problem& p, float* row, const std::uint32_t* mask,
                              const LogitPenalties& penalties) {
  const auto each = [&](int begin, int end, auto change) {
    for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += kThreads)
      if (const LogitChange c = p.changes[i]; c.id >= 0 && c.id < p.cols) row[c.id] = change(row[c.id], c);
  };
  const auto* starts = p.starts + 2 * blockIdx.y;
  each(starts[0], starts[1], [&](float x, const LogitChange& c) {
    const float y = __fadd_rn(x, c.bias);
    return allowed(mask, c.id) ? y : excluded(y);
  });
  __syncthreads();
  each(starts[1], starts[2], [&](float x, const LogitChange& c) {
    return penalised(allowed(mask, c.id) ? x : excluded(x), penalties, c.times);
  });
}

__device__ void apply_mask(const Problem& p, float* row, const std::uint32_t* mask) {
  const int begin = (static_cast<int>(blockIdx.x) - 1) * kOfBlock;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int id = begin + i * kThreads + static_cast<int>(threadIdx.x);
    if (id < p.cols && !allowed(mask, id)) row[id] = excluded(row[id]);
  }
}

__global__ void __launch_bounds__(kThreads) change_rows(const __grid_constant__ Problem p) {
  float* const row = p.logits + blockIdx.y * p.stride;
  const LogitRules::Rule rule = p.rules[blockIdx.y];
  const auto* mask = rule.mask < 0 ? nullptr : p.masks + static_cast<std::int64_t>(rule.mask) * p.words;
  if (blockIdx.x == 0) change_listed(p, row, mask, rule.penalties);
  else if (mask != nullptr) apply_mask(p, row, mask);
}

}  // namespace

void logit_rules(Stream& s, Tensor logits, View rules, View starts, View changes, View masks) {
  if (logits.size() == 0) return;
  const Problem p{.logits = logits.ptr<float>(),
                  .stride = logits.row_stride(),
                  .cols = static_cast<int>(logits.cols()),
                  .words = static_cast<int>(masks[1]),
                  .rules = reinterpret_cast<const LogitRules::Rule*>(rules.ptr<std::int32_t>()),
                  .starts = starts.ptr<std::int32_t>(),
                  .changes = reinterpret_cast<const LogitChange*>(changes.ptr<std::int32_t>()),
                  .masks = reinterpret_cast<const std::uint32_t*>(masks.ptr<std::int32_t>())};
  const dim3 grid{1 + blocks_for(logits.cols(), kOfBlock), static_cast<unsigned>(logits.rows())};
  change_rows<<<grid, kThreads, 0, queue(s)>>>(p);
  launched("logit_rules");
}

}  // namespace hpcdl::cuda
