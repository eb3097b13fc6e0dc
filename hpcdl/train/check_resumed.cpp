#include "hpcdl/train/check_resumed.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <string_view>

#include "hpcdl/core/error.h"
#include "hpcdl/io/number_within.h"

namespace hpcdl::train {
namespace {

/// The range of the number with this name. "*_loss" stands for all names that end in "_loss".
struct Rule {
  std::string_view name;
  double low, high;
  bool whole;
};

constexpr double kInt32Max = std::numeric_limits<std::int32_t>::max();
constexpr double kFloatMax = std::numeric_limits<float>::max(), kFloatMin = std::numeric_limits<float>::denorm_min();
constexpr double kDoubleMax = std::numeric_limits<double>::max();
constexpr auto kMost = static_cast<double>(io::kMaxCount);

constexpr Rule kRules[] = {
    {"loss", -kDoubleMax, kDoubleMax, false},
    {"*_loss", -kDoubleMax, kDoubleMax, false},
    {"*_correct", 0, kMost, false},
    {"*_counted", 0, kMost, true},
    {"epoch_done", 0, 1, true},
    {"evaluation_due", 0, 1, true},
    {"loss_scale", kFloatMin, kFloatMax, false},
    {"good_steps", 0, kInt32Max, true},
    {"skipped_steps", 0, kInt32Max, true},
};

bool speaks_of(const Rule& rule, std::string_view name) {
  return rule.name.starts_with('*') ? name.ends_with(rule.name.substr(1)) : name == rule.name;
}

void check_scalars(const std::string& where, const std::map<std::string, double>& scalars) {
  for (const auto& [name, value] : scalars)
    for (const auto& rule : kRules) {
      if (!speaks_of(rule, name)) continue;
      const bool in_range = value >= rule.low && value <= rule.high;
      require(in_range && (!rule.whole || value == std::trunc(value)), "resume",
              "{}: scalars: key {}: expected a {} from {} to {}, found {}", where, io::shown(name),
              rule.whole ? "whole number" : "number", rule.low, rule.high, value);
    }
}

}  // namespace

void check_resumed(const io::CheckpointInfo& found, std::int64_t steps, std::int64_t rows) {
  const auto& s = found.state;
  const std::string where = (found.path / "state.json").string();
  require(steps == 0 || s.step <= steps, "resume",
          "{}: key \"step\": expected at most the {} of train.steps, found {}: set train.steps to more, or "
          "checkpoint.resume to none",
          where, steps, s.step);
  require(s.index < rows, "resume",
          "{}: sampler: key \"index\": expected less than the {} rows of an epoch, found {}: resume with the data and "
          "the train.length that the checkpoint was made with",
          where, rows, s.index);
  const std::int64_t most = std::min(s.tokens, io::kMaxCount / rows);
  require(s.epoch <= most, "resume", "{}: sampler: key \"epoch\": expected at most {}, found {}", where, most, s.epoch);
  check_scalars(where, s.scalars);
}

}  // namespace hpcdl::train
