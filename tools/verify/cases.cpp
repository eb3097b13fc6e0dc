// The cases of each stage.

#include <fmt/format.h>

#include <algorithm>

#include "hpcdl/core/error.h"
#include "hpcdl/io/nearest.h"
#include "hpcdl/rng.h"
#include "tools/verify/case.h"

namespace hpcdl::lab::verify {
namespace {

constexpr std::string_view kNames[kStages] = {"smoke", "shapes", "stability", "determinism", "edges", "speed"};

/// Adds cases of one stage and kernel.
struct Maker {
  const Contract& contract;
  Stage stage;
  std::uint64_t seed;
  std::vector<Case> cases;

  Case& add(Check check, DType dtype, const Dims& size, int variant) {
    Case c;
    c.stage = stage, c.check = check, c.dtype = dtype, c.variant = variant % contract.variants;
    c.seed = seed * 7919 + cases.size();
    c.set_size(size);
    return cases.emplace_back(c);
  }
};

void shapes(Maker& m, DType t) {
  for (std::size_t i = 1; i < m.contract.shapes.size(); ++i)
    for (int v = 0; v < (i < 7 ? m.contract.variants : 1); ++v)
      m.add(Check::plain, t, m.contract.shapes[i], v + static_cast<int>(i)).misaligned = i % 2 != 0;
}

void stability(Maker& m, DType t) {
  for (Pattern p : m.contract.patterns)
    for (int place = 0; place < (p >= Pattern::nan ? 3 : 1); ++place)
      for (int v = 0; v < m.contract.variants; ++v) {
        // Once with tails everywhere, once with whole vectors: a kernel may support only these.
        for (const Dims* size : {&m.contract.typical, &m.contract.shapes[0]}) {
          if (size != &m.contract.typical && place != 1 && p >= Pattern::nan) continue;
          Case& c = m.add(Check::plain, t, *size, v);
          c.pattern = p, c.place = place;
        }
      }
  // Long sums of one sign, in which a short accumulator stops growing.
  for (int v = 0; v < m.contract.variants; ++v)
    m.add(Check::plain, t, m.contract.shapes[m.contract.shapes.size() - 2], v).pattern = Pattern::positive;
}

void determinism(Maker& m, DType t) {
  for (int v = 0; v < m.contract.variants; ++v) {
    for (int again = 0; again < 2; ++again) m.add(Check::plain, t, m.contract.typical, v);
    for (const Dims* size : {&m.contract.typical, &m.contract.shapes[0]}) {
      m.add(Check::same_address, t, *size, v);
      m.add(Check::interleave, t, *size, v);
    }
    m.add(Check::repeat, t, m.contract.shapes.back(), v);
    m.add(Check::threads, t, m.contract.shapes.back(), v);
  }
}

/// A size near a multiple of usual tiles.
std::int64_t near_a_tile(const Dim& d, const Rng& rng, std::uint64_t at) {
  constexpr std::int64_t tiles[] = {1, 4, 8, 16, 32, 64, 128, 256};
  const auto tile = tiles[rng.below(at, std::size(tiles))];
  const auto count =
      1 + static_cast<std::int64_t>(rng.below(at + 1000, static_cast<std::uint64_t>(std::max<std::int64_t>(
                                                             1, std::min<std::int64_t>(d.most / tile, 8)))));
  return std::clamp<std::int64_t>(tile * count + static_cast<std::int64_t>(rng.below(at + 2000, 4)) - 2, d.least,
                                  d.most);
}

void edges(Maker& m, DType t, std::uint32_t flags) {
  const auto& c = m.contract;
  for (int v = 0; v < c.variants; ++v) {
    m.add(Check::guard_pages, t, c.typical, v);
    m.add(Check::guard_pages, t, c.shapes[4], v);
    if (twin_of_first(c.problem(c.typical, t, v)) > 0) m.add(Check::alias, t, c.typical, v);
    if (flags & HPCDL_IN_PLACE) {
      m.add(Check::in_place, t, c.typical, v);
      m.add(Check::in_place, t, c.shapes[4], v).misaligned = true;
    }
  }
  const Rng rng{m.seed, t == DType::bf16 ? 2u : t == DType::f16 ? 3u : 1u};
  for (std::uint64_t i = 0; i < 24; ++i) {
    Dims size;
    for (std::size_t d = 0; d < c.dims.size(); ++d) size.push_back(near_a_tile(c.dims[d], rng, i * 10 + d));
    Case& fuzz = m.add(i % 4 == 3 ? Check::guard_pages : Check::plain, t, size,
                       static_cast<int>(rng.below(i * 10 + 9, static_cast<std::uint64_t>(c.variants))));
    fuzz.misaligned = i % 2 != 0;
    if (i % 3 == 2 && !c.patterns.empty()) fuzz.pattern = c.patterns[rng.below(i * 10 + 8, c.patterns.size())];
  }
}

}  // namespace

std::string_view stage_name(Stage s) { return kNames[static_cast<int>(s)]; }

Stage stage_from_name(std::string_view name) {
  for (int i = 0; i < kStages; ++i)
    if (kNames[i] == name) return static_cast<Stage>(i);
  fail_usage("verify", "unknown stage \"{}\"{}: expected one of {}", name,
             io::did_you_mean(name, {std::begin(kNames), std::end(kNames)}), fmt::join(kNames, ", "));
}

std::string to_string(const Case& c, const Contract& contract) {
  std::string s{dtype_name(c.dtype)};
  for (int d = 0; d < c.n_dims; ++d)
    s += fmt::format(", {} {}", contract.dims[static_cast<std::size_t>(d)].name, c.dims[d]);
  if (contract.variants > 1) s += fmt::format(", variant {}", c.variant);
  if (c.pattern != Pattern::normal) s += fmt::format(", {}", pattern_name(c.pattern));
  if (c.pattern >= Pattern::nan) s += c.place == 0 ? " (first)" : c.place == 1 ? " (middle)" : " (last)";
  if (c.misaligned) s += ", misaligned";
  return s;
}

std::size_t twin_of_first(const Problem& problem) {
  const auto& in = problem.in;
  for (std::size_t i = 1; i < in.size(); ++i)
    if (in[0].role == Role::data && in[i].role == Role::data && in[i].spec == in[0].spec) return i;
  return 0;
}

std::vector<Case> cases_of(Stage stage, const Contract& contract, std::uint32_t dtypes, std::uint32_t flags,
                           std::uint64_t seed) {
  Maker m{contract, stage, seed + static_cast<std::uint64_t>(stage) * 131, {}};
  for (const auto& [t, taken] :
       {std::pair{DType::f32, HPCDL_TAKES_F32}, {DType::bf16, HPCDL_TAKES_BF16}, {DType::f16, HPCDL_TAKES_F16}}) {
    if (!(dtypes & taken)) continue;
    switch (stage) {
      case Stage::smoke: m.add(Check::plain, t, contract.shapes[0], 0); break;
      case Stage::shapes: shapes(m, t); break;
      case Stage::stability: stability(m, t); break;
      case Stage::determinism: determinism(m, t); break;
      case Stage::edges: edges(m, t, flags); break;
      case Stage::speed: m.add(Check::time, t, contract.timed, 0); break;
    }
  }
  return m.cases;
}

}  // namespace hpcdl::lab::verify
