#include "hpcdl/ops/matmul/gemm.h"

#include <xmmintrin.h>

#include <atomic>

#include "hpcdl/ops/matmul/gemm_worker.h"

namespace hpcdl::gemm {
namespace {

using namespace blocked;

/// For few rows and an unpacked B: strips of columns, handed out one at a time.
struct SmallPlan {
  static constexpr std::int64_t kStrip = 128;
  std::int64_t x_stride, strips, bytes;  // stride and scratch in bytes

  SmallPlan(const KernelSet& s, const Problem& p) {
    const std::int64_t words = ceil_div(p.k, s.group);
    x_stride = ceil_div(words, s.lanes) * s.lanes * kWord;
    strips = ceil_div(p.n, kStrip);
    bytes = p.m * x_stride + 64;
  }
  static bool fits(const Problem& p) {
    return !p.row_invariant && !p.packed_b && p.m <= KernelSet::kSmallRows && !p.a.transposed;
  }
};

void small_setup(const KernelSet& s, const Problem& p, const SmallPlan& plan, std::byte* x) {
  for (std::int64_t m = 0; m < p.m; ++m)
    s.to_words(reinterpret_cast<std::uint32_t*>(x + m * plan.x_stride), element(p.a, m, 0, true), p.a.dtype, p.k);
}

void small_strip(const KernelSet& s, const Problem& p, const Finish& f, const SmallPlan& plan, const std::byte* x,
                 std::int64_t strip) {
  alignas(64) std::uint32_t buffer[KernelSet::kSmallRows * SmallPlan::kStrip];
  const std::int64_t col = strip * SmallPlan::kStrip, cols = std::min(SmallPlan::kStrip, p.n - col);
  s.small({.x = x,
           .x_stride = plan.x_stride,
           .rows = static_cast<int>(p.m),
           .b = element(p.b, col, 0, p.b.transposed),
           .dtype = p.b.dtype,
           .ld = p.b.ld,
           .k_dense = p.b.transposed,
           .k = p.k,
           .cols = static_cast<int>(cols),
           .out = buffer,
           .out_ld = SmallPlan::kStrip});
  f.apply(f.epilogue, buffer, SmallPlan::kStrip, 0, col, static_cast<int>(p.m), static_cast<int>(cols));
}

void run_small(const KernelSet& s, Pool& pool, const Problem& p, const Finish& f) {
  const SmallPlan plan(s, p);
  pool.reserve_scratch(plan.bytes);
  std::atomic<std::int64_t> next{0};
  const auto job = [&](int thread) {
    std::byte* x = pool.scratch(thread);
    small_setup(s, p, plan, x);
    for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < plan.strips;)
      small_strip(s, p, f, plan, x, i);
  };
  if (plan.strips == 1 || p.n * p.k < 16384) job(0);
  else pool.run(job);
}

/// The kernel set and the B with which a product is computed.
struct Choice {
  Problem p;
  const KernelSet& s;

  Choice(const KernelSet& set, const Problem& given) : p(given), s(has_few(set, given) ? *set.few : set) {
    if (set.keeps_rows && p.packed_b) p.b = {p.packed_b, DType::f32, p.k, true}, p.packed_b = nullptr;
  }
  static bool has_few(const KernelSet& set, const Problem& p) {
    return set.few && ((!p.row_invariant && p.m < set.few_rows) || p.n * p.k < set.few_elements);
  }
};

}  // namespace

void run(const KernelSet& set, Pool& pool, const Problem& given, const Finish& f) {
  const Choice choice(set, given);
  const Problem& p = choice.p;
  const KernelSet& s = choice.s;
  if (p.m <= 0 || p.n <= 0) return;
  if (SmallPlan::fits(p)) return run_small(s, pool, p, f);
  const Plan plan(s, p, pool.threads());
  pool.reserve_scratch(plan.a_bytes + plan.b_bytes + plan.c_bytes + plan.sums_bytes);
  const std::int64_t units = plan.m_units.parts * plan.n_units.parts;
  std::atomic<std::int64_t> next{0};
  const auto job = [&](int thread) {
    Worker worker(s, p, plan, f, pool.scratch(thread));
    for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < units;)
      worker.unit(i % plan.m_units.parts, i / plan.m_units.parts);
    if (f.cold) _mm_sfence();  // before other threads read what non-temporal stores wrote
  };
  if (units == 1) job(0);
  else pool.run(job);
}

std::int64_t scratch_bytes(const KernelSet& set, const Problem& given) {
  const Choice choice(set, given);
  const Problem& p = choice.p;
  const KernelSet& s = choice.s;
  if (SmallPlan::fits(p)) return SmallPlan(s, p).bytes;
  const Plan plan(s, p, 1);
  return plan.a_bytes + plan.b_bytes + plan.c_bytes + plan.sums_bytes;
}

void run_alone(const KernelSet& set, std::byte* scratch, const Problem& given, const Finish& f) {
  const Choice choice(set, given);
  const Problem& p = choice.p;
  const KernelSet& s = choice.s;
  if (p.m <= 0 || p.n <= 0) return;
  if (SmallPlan::fits(p)) {
    const SmallPlan plan(s, p);
    small_setup(s, p, plan, scratch);
    for (std::int64_t i = 0; i < plan.strips; ++i) small_strip(s, p, f, plan, scratch, i);
    return;
  }
  const Plan plan(s, p, 1);
  Worker worker(s, p, plan, f, scratch);
  for (std::int64_t n = 0; n < plan.n_units.parts; ++n)
    for (std::int64_t m = 0; m < plan.m_units.parts; ++m) worker.unit(m, n);
  if (f.cold) _mm_sfence();
}

namespace {

void keep_rows(Pool& pool, float* dst, const Operand& b, std::int64_t n, std::int64_t k) {
  constexpr std::int64_t kColumns = 16;  // per line of B
  const auto copy = [&]<class T>() {
    const auto* src = static_cast<const T*>(b.data);
    parallel_tasks(pool, ceil_div(n, kColumns), [&](std::int64_t task) {
      const std::int64_t begin = task * kColumns, end = std::min(n, begin + kColumns);
      if (b.transposed)
        for (std::int64_t j = begin; j < end; ++j)
          for (std::int64_t i = 0; i < k; ++i) dst[j * k + i] = static_cast<float>(src[j * b.ld + i]);
      else
        for (std::int64_t i = 0; i < k; ++i)
          for (std::int64_t j = begin; j < end; ++j) dst[j * k + i] = static_cast<float>(src[i * b.ld + j]);
    });
  };
  visit_dtype(b.dtype, copy);
}

}  // namespace

std::int64_t packed_b_bytes(const KernelSet& s, std::int64_t n, std::int64_t k) {
  if (s.keeps_rows) return n * k * kWord;
  const Grid g(s, n, k);
  return g.words * g.panels.n * s.lanes * kWord;
}

void pack_b(const KernelSet& s, Pool& pool, std::byte* dst, const Operand& b, std::int64_t n, std::int64_t k) {
  if (s.keeps_rows) return keep_rows(pool, reinterpret_cast<float*>(dst), b, n, k);
  const Grid g(s, n, k);
  parallel_tasks(pool, g.panels.parts, [&](std::int64_t panel) {
    for (std::int64_t block = 0; block < g.blocks.parts; ++block)
      pack_panel(s, g, b, n, k, panel, whole_block(g, block),
                 dst + (g.k_begin(block) * g.panels.n + g.panels.begin(panel) * g.k_words(block)) * s.lanes * kWord);
  });
}

}  // namespace hpcdl::gemm
