#include "tools/profile/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "hpcdl/core/units.h"
#include "tools/cases.h"

namespace hpcdl::lab {

namespace {

constexpr double kNearRoof = 0.8;      // of the roof: the rest is not worth a search
constexpr double kUneven = 0.8;        // mean over largest working time of a thread
constexpr double kIdle = 0.6;          // share of the threads' time that was work
constexpr double kShort = 30e-6;       // seconds: below this, waking threads and loading the first lines matter
constexpr double kSmallProduct = 5e7;  // flops of one call

/// The command that times the op alone, if the list of cases has it.
std::string bench_of(const Row& r) {
  const auto op = r.name.substr(0, r.name.find('.'));
  for (const auto& f : case_families())
    if (f.op.substr(0, f.op.find('+')) == op) return fmt::format(": hpcdl bench {} times it alone", op);
  return "";
}

/// The first matching rule: causes outside of the kernel come before causes within it.
std::string what_to_try(const Row& r, const Roofs& roofs) {
  const double each = r.seconds / std::max(r.calls, 1.0);
  const bool f32_product = r.dtype == DType::f32 && r.bound == Bound::compute && roofs.bf16 > 1.5 * roofs.f32;
  const auto bf16 =
      fmt::format("train.dtype = \"bf16\" has a roof {:.1f} times as high", roofs.f32 > 0 ? roofs.bf16 / roofs.f32 : 0);
  if (r.of_roof() >= kNearRoof && r.bound == Bound::network)
    return "it is near the roof of the network: only fewer bytes make it faster, that is fewer ranks or a larger batch";
  if (r.of_roof() >= kNearRoof)
    return f32_product ? "it is near its roof for f32; " + bf16
                       : "it is near its roof: only less work makes it faster, that is a smaller model or fewer tokens";
  if (r.phase == Phase::recompute)
    return "it is computed twice to save memory: set train.recompute = false if there is enough memory";
  if (r.balance >= 0 && r.balance < kUneven)
    return fmt::format(
        "its threads have uneven work (on average {:.0f} % of that of the busiest): choose sizes that divide evenly, "
        "or fewer train.threads",
        100 * r.balance);
  if (each < kShort)
    return fmt::format("each call takes {}, too short to occupy the threads: use a larger train.batch or wider layers",
                       format_duration(each));
  if (r.busy >= 0 && r.busy < kIdle)
    return fmt::format(
        "its threads work {:.0f} % of the time: part of it runs on one thread; a larger train.batch helps if rows are "
        "few",
        100 * r.busy);
  if (r.phase == Phase::update) return "it takes the same time for any batch: raise train.accumulate or train.batch";
  if (f32_product) return "it multiplies in f32; " + bf16;
  if (r.bound == Bound::compute && r.flops / std::max(r.calls, 1.0) < kSmallProduct)
    return "its matrices are small: a larger train.batch gives each call more work";
  if (r.dtype == DType::f32 && r.bound == Bound::memory && r.phase != Phase::update)
    return fmt::format("it moves {} per step: train.dtype = \"bf16\" halves that", format_bytes(r.bytes));
  if (r.bound == Bound::none) return "it declares no cost, so there is no roof to compare with";
  return "nothing outside the kernel explains it" + bench_of(r);
}

}  // namespace

std::vector<Advice> advice(const std::vector<Row>& rows, const Roofs& roofs, std::size_t count) {
  std::vector<const Row*> order;
  for (const auto& r : rows)
    if (r.lost() > 0) order.push_back(&r);
  std::stable_sort(order.begin(), order.end(), [](const Row* a, const Row* b) { return a->lost() > b->lost(); });
  if (order.size() > count) order.resize(count);
  std::vector<Advice> list;
  for (const auto* r : order)
    list.push_back({r->label(), r->calls, r->lost(), r->of_roof(), r->bound, what_to_try(*r, roofs)});
  return list;
}

nlohmann::ordered_json advice_json(const std::vector<Advice>& list) {
  auto out = nlohmann::ordered_json::array();
  for (const auto& a : list)
    out.push_back({{"record", a.label},
                   {"calls", a.calls},
                   {"lost_ms", 1e3 * a.lost},
                   {"of_roof", a.of_roof},
                   {"bound", bound_name(a.bound)},
                   {"try", a.text}});
  return out;
}

std::string advice_text(const std::vector<Advice>& list, double step_seconds) {
  std::string out = fmt::format("lost against the roof, of {:.3f} ms per step:\n", 1e3 * step_seconds);
  for (const auto& a : list)
    out += fmt::format("  {:>9.3f} ms ({:4.1f} %)  {}{}, {}: {:.0f} % of its roof; {}\n", 1e3 * a.lost,
                       100 * a.lost / step_seconds, a.label, a.calls > 1 ? fmt::format(" x{:.0f}", a.calls) : "",
                       a.bound == Bound::none ? "no cost stated" : fmt::format("{}-bound", bound_name(a.bound)),
                       100 * a.of_roof, a.text);
  return out;
}

}  // namespace hpcdl::lab
