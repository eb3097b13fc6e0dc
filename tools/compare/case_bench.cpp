#include "tools/compare/case_bench.h"

#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/core/ways.h"

namespace hpcdl::lab::compare {

namespace {

CaseBench described(const Case& c, const CaseRun& run, const Roofs& roofs, Cache cache) {
  CaseBench out;
  out.what = c;
  out.cost = run.cost();
  const auto l = light_of(run.program(), roofs, cache);
  out.light = l.seconds, out.compute_bound = l.by_arithmetic();
  return out;
}

}  // namespace

LightTime light_of(const Program& program, const Roofs& roofs, Cache cache) {
  Roofs r = roofs;
  if (cache != Cache::warm) r.caches.clear(), r.cache_bytes = 0;
  return lab::light(program, r);
}

std::string CaseBench::fault() const {
  if (!(light > 0) || result.sides.empty() || light <= result.sides[0].time().high) return "";
  return fmt::format(
      "above the speed of light by {:.0f} %: work was left out, its declared cost is too high, or the roofs were "
      "measured on a busy machine (hpcdl probe)",
      100 * (score() - 1));
}

CaseBench bench_case(const Case& c, Stream stream, Environment& environment, const Roofs& roofs,
                     const std::vector<Peer>& peers, const Options& options) {
  WayNotes notes;
  const CaseRun run = [&] {
    const WithWayNotes with(stream, notes);
    return ready(c, stream);
  }();
  CaseBench out = described(c, run, roofs, options.cache);
  for (const auto& [key, note] : notes.all()) out.ways.push_back(fmt::format("{}: {}", note.call, note.used));
  std::vector<Side> sides{{kOurs, [&] { run.run(stream); }}};
  run.run(stream);
  std::vector<Offer> offers;  // keep their results alive
  for (const auto& peer : peers) {
    Offer o = peer.missing.empty() ? peer.offer(c, run) : Offer{.call = {}, .result = {}, .missing = peer.missing};
    if (!o.missing.empty()) {
      out.missing[peer.name] = o.missing;
      continue;
    }
    o.call();
    if (o.result) {
      const auto product = *product_of(run);
      const double d = out.differences[peer.name] = difference(product, *o.result);
      require(d <= rounding(product), "compare",
              "{}: {} computes another result: relative difference {:.2e}, but rounding explains at most {:.2e}",
              case_label(c), peer.name, d, rounding(product));
    }
    sides.push_back({peer.name, o.call});
    offers.push_back(std::move(o));
  }
  Options o = options;
  if (sides.size() == 1) o.settle = 0;  // no threads of other libraries
  out.result = compare::run(sides, environment, o);
  return out;
}

CaseBench self_test_case(const Case& c, Stream stream, Environment& environment, const Roofs& roofs,
                         const Options& options, int repeats, double limit, const AfterRepeat& after) {
  const CaseRun run = ready(c, stream);
  CaseBench out = described(c, run, roofs, options.cache);
  const Side side{kOurs, [&] { run.run(stream); }};
  Options one = options;
  one.rounds = 3;
  out.result = compare::run({side}, environment, one);
  out.self_test = self_test(side, environment, options, repeats, limit, after);
  return out;
}

nlohmann::ordered_json to_json(const CaseBench& b) {
  const double s = b.seconds();
  nlohmann::ordered_json j = {{"op", b.what.op},
                              {"shape", b.what.shape},
                              {"dtype", dtype_word(b.what.dtype)},
                              {"pass", b.what.backward ? "fwd+bwd" : "fwd"},
                              {"flops", b.cost.operations},
                              {"bytes", b.cost.bytes()},
                              {"gflops", b.cost.operations / s / 1e9},
                              {"gbps", b.cost.bytes() / s / 1e9},
                              {"bound", b.compute_bound ? "compute" : "memory"},
                              {"speed_of_light_ms", b.light * 1e3},
                              {"speed_of_light_score", b.score()}};
  j["cache"] = b.result.cache, j["rounds"] = b.result.rounds(), j["half_width"] = b.result.half_width,
  j["settled"] = b.result.settled;
  for (const auto& m : b.result.sides)
    j["sides"][m.name] = to_json(m.time(), 1e3, "_ms"), j["sides"][m.name]["calls"] = m.calls;
  const auto fault = b.fault();
  if (!fault.empty()) j["fault"] = fault;
  else
    for (std::size_t i = 1; i < b.result.sides.size(); ++i)
      j["ratios"][b.result.sides[i].name] = to_json(b.result.ratio(b.result.sides[i].name, kOurs));
  if (!b.ways.empty()) j["ways"] = b.ways;
  for (const auto& [name, d] : b.differences) j["differences"][name] = d;
  for (const auto& [name, why] : b.missing) j["missing"][name] = why;
  if (b.disturbance.seconds > 0) j["disturbance"] = to_json(b.disturbance);
  if (b.self_test) j["aa"] = to_json(*b.self_test);
  return j;
}

}  // namespace hpcdl::lab::compare
