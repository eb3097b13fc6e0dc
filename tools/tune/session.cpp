#include "tools/tune/session.h"

#include "hpcdl/core/error.h"

namespace hpcdl::lab::tune {

Mode mode_from_name(std::string_view name) {
  if (name == "off") return Mode::off;
  if (name == "cached") return Mode::cached;
  if (name == "full") return Mode::full;
  fail_usage("tune", "--tune: expected off, cached or full, got \"{}\"", name);
}

Session::Session(Device device, Pool& pool, Mode mode, const std::string& version,
                 std::function<void(std::string_view)> say)
    : stream_(device, pool, &params_),
      pool_(pool),
      mode_(mode),
      say_(std::move(say)),
      identity_(identity_of(device, version)),
      file_(cache_file(identity_)) {
  cache_.identity = identity_;
  if (mode == Mode::off) return;
  cache_ = read_cache(file_, identity_);
  if (!cache_.warning.empty()) say_(cache_.warning);
}

Report Session::tune(const Wishes& wishes, const Budget& budget, bool anew) {
  Report report;
  compare::GpuEnvironment clock(pool_, stream_);
  Bench bench{stream_, clock};
  std::size_t left = wishes.size();
  for (const auto& [key, wish] : wishes) {
    --left;
    if (!anew && cache_.find(key)) {
      ++report.remembered;
      continue;
    }
    if (budget.over()) {
      report.skipped.push_back(wish.text + ": the time for tuning is over");
      continue;
    }
    try {
      say_(fmt::format("tuning {}, {} more", wish.text, left));
      auto outcome = tune::tune(*wish.make(bench), budget);
      if (outcome.complete) cache_.put(entry_of(outcome));
      report.outcomes.push_back(std::move(outcome));
    } catch (const Error& e) {  // probably not enough memory for the operands
      report.skipped.push_back(fmt::format("{}: {}", wish.text, e.what()));
    }
  }
  if (report.outcomes.empty()) return report;
  try {
    write_cache(file_, cache_);
  } catch (const Error& e) {
    say_(fmt::format("the choices are not remembered: {}", e.what()));
  }
  return report;
}

std::shared_ptr<const Ways> Session::ways() const {
  return std::make_shared<const Ways>(WayNames{.calls = cache_.choices(), .preferred = {}});
}

Report Session::prepare(const std::vector<const Instance*>& programs, double seconds) {
  if (mode_ != Mode::full) return {};
  const auto budget = budget_of(seconds);
  Wishes all;
  for (const auto* exe : programs) all.merge(wishes_of(*exe, stream_));
  return tune(all, budget);
}

}  // namespace hpcdl::lab::tune
