#include "hpcdl/simd/isa.h"
#include "tools/probe/parts.h"

#include <fmt/format.h>

#include <algorithm>

namespace hpcdl::lab {

namespace {

double spin(const Peak& p, std::int64_t rounds) {
  const auto isa = std::find_if(std::begin(simd::kIsaKinds), std::end(simd::kIsaKinds),
                                [&](auto k) { return simd::isa_name(k) == p.isa; });
  return simd::with_isa(*isa, [&](auto tag) {
    if (*isa == simd::IsaKind::amx && (p.dtype == "bf16" || p.dtype == "i8"))
      return cpu::spin_tiles(tag, p.dtype == "i8", rounds);
    if (p.dtype == "bf16") return cpu::spin_bf16(tag, rounds);
    if (p.dtype == "i8") return cpu::spin_i8(tag, rounds);
    if (p.dtype == "f64") return cpu::spin_f64(tag, rounds);
    return cpu::spin_f32(tag, rounds);
  });
}

}  // namespace

void list_peaks(simd::IsaKind isa, const std::vector<std::string>& dtypes, int threads, std::vector<Peak>& peaks) {
  for (const auto& dtype : dtypes) peaks.push_back({std::string(simd::isa_name(isa)), dtype, threads});
}

void add_peaks(Rounds& rounds, std::vector<Peak>& list, const std::vector<Pool*>& pools, double seconds) {
  for (auto& p : list) {
    const auto pool =
        std::find_if(pools.begin(), pools.end(), [&](const Pool* x) { return x->threads() == p.threads; });
    if (pool == pools.end()) continue;
    const auto work = [&p, x = *pool](std::int64_t n) {
      std::vector<double> done(static_cast<std::size_t>(x->threads()) * 8);  // a cache line apart
      x->run([&](int t) { done[static_cast<std::size_t>(t) * 8] = spin(p, n * 256); });
      double sum = 0;
      for (std::size_t t = 0; t < done.size(); t += 8) sum += done[t];
      return sum;
    };
    rounds.add(fmt::format("peak {} {}, {} thread{}", p.isa, p.dtype, p.threads, p.threads == 1 ? "" : "s"), p.rate,
               Rate(work, seconds));
  }
}

}  // namespace hpcdl::lab
