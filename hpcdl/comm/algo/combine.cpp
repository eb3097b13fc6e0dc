#include "hpcdl/comm/algo/combine_kernels.h"
#include "hpcdl/core/element.h"
#include "hpcdl/core/error.h"
#include "hpcdl/simd/isa.h"

namespace hpcdl::comm::algo {

namespace {

void run(const CombineArguments& a) {
  simd::with_isa([&](auto isa) { combine_kernel(isa, a); });
}

}  // namespace

void check(const Reduction& r) {
  require(is_number(r.dtype), "comm", "expected f32, bf16, f16, f64 or integers to reduce, got {}",
          dtype_name(r.dtype));
  require(r.op != Reduce::avg || is_float(r.dtype), "comm",
          "expected floats to average, got {}: sum the integers, and divide the sum yourself", dtype_name(r.dtype));
}

void combine(const Reduction& r, Part part, std::byte* out, const std::byte* a, const std::byte* b, std::int64_t n) {
  const std::byte* in[] = {a, b};
  const Reduce op = r.op == Reduce::avg && part == Part::inner ? Reduce::sum : r.op;
  run({.dtype = r.dtype, .op = op, .divisor = r.ranks, .out = &out, .outs = 1, .in = in, .ins = 2, .n = n});
}

void combine_all(const Reduction& r, std::span<std::byte* const> out, std::span<const std::byte* const> in,
                 std::int64_t n, Sweep sweep) {
  require(in.size() <= kMostTogether && out.size() <= kMostTogether, "comm",
          "expected at most {} tensors in one sum of the ranks of a host, or by pairwise or star, got {}",
          kMostTogether, in.size());
  run({.dtype = r.dtype,
       .op = r.op,
       .divisor = r.ranks,
       .out = out.data(),
       .outs = static_cast<int>(out.size()),
       .in = in.data(),
       .ins = static_cast<int>(in.size()),
       .n = n,
       .sweep = sweep});
}

}  // namespace hpcdl::comm::algo
