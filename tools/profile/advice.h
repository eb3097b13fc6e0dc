#pragma once
// The records that lose the most time compared with their roof, each with a suggestion.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/profile/totals.h"

namespace hpcdl::lab {

struct Advice {
  std::string label;  // "linear.backward layers.*.mlp.c_fc"
  double calls = 0;   // per step
  double lost = 0;    // seconds per step above the speed of light
  double of_roof = 0;
  Bound bound = Bound::none;
  std::string text;
};

/// At most `count`, the greatest loss first; records without loss are omitted.
std::vector<Advice> advice(const std::vector<Row>& rows, const Roofs& roofs, std::size_t count = 5);
nlohmann::ordered_json advice_json(const std::vector<Advice>& list);
/// One line per record.
std::string advice_text(const std::vector<Advice>& list, double step_seconds);

}  // namespace hpcdl::lab
