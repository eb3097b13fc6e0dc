#include "hpcdl/instance.h"

#include <utility>

namespace hpcdl {

std::shared_ptr<const Planned> planned(Program program, std::vector<Var> inputs, std::vector<Var> outputs) {
  Plan plan = hpcdl::plan(program);
  return std::make_shared<const Planned>(
      Planned{std::move(program), std::move(plan), std::move(inputs), std::move(outputs)});
}

Pass Pass::of(Graph& g, std::vector<Var> inputs, std::vector<Var> outputs) {
  for (const auto& v : outputs) g.keep(v);
  auto [program, bindings] = g.finish();
  return {hpcdl::planned(std::move(program), std::move(inputs), std::move(outputs)), std::move(bindings)};
}

std::shared_ptr<const Pass> ProgramCache::pass(const std::string& key, const std::function<Pass()>& record) {
  const std::lock_guard lock(mutex_);
  if (const auto known = passes_.find(key); known != passes_.end()) return known->second;
  if (passes_.size() >= kMost) passes_.clear();
  return passes_.emplace(key, std::make_shared<const Pass>(record())).first->second;
}

void ProgramCache::clear() {
  const std::lock_guard lock(mutex_);
  passes_.clear();
}

}  // namespace hpcdl
