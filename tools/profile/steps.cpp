#include "tools/profile/steps.h"

#include <algorithm>

namespace hpcdl::lab {

std::string record_name(const Record& record) {
  std::string name(record.op);
  if (record.phase == Phase::backward || record.phase == Phase::recompute)
    name += '.', name += phase_name(record.phase);
  return name;
}

std::string folded_scope(std::string_view scope) {
  std::string out;
  while (!scope.empty()) {
    const auto part = scope.substr(0, scope.find('.'));
    const bool number = part.find_first_not_of("0123456789") == part.npos && !part.empty();
    if (!out.empty()) out += '.';
    out += number ? std::string_view("*") : part;
    scope.remove_prefix(std::min(part.size() + 1, scope.size()));
  }
  return out;
}

std::string layer_scope(const std::string& scope) {
  const auto dot = scope.find('.');
  if (dot == std::string::npos) return scope;
  const auto end = scope.find('.', dot + 1);
  const auto second = scope.substr(dot + 1, end == std::string::npos ? end : end - dot - 1);
  const bool number = !second.empty() && second.find_first_not_of("0123456789") == std::string::npos;
  return number ? scope.substr(0, end) : scope.substr(0, dot);
}

std::vector<LayerSpan> layer_spans(const Program& program, const ProgramRun& run) {
  std::vector<LayerSpan> spans;
  const auto layer_of = [&](std::size_t i) { return layer_scope(program.scopes[program.records[i].scope]); };
  for (std::size_t i = 0; i < run.times.size();) {
    const auto phase = program.records[i].phase;
    auto layer = layer_of(i);
    auto last = i;
    while (last + 1 < run.times.size() && program.records[last + 1].phase == phase && layer_of(last + 1) == layer)
      ++last;
    if (!layer.empty()) spans.push_back({std::move(layer), phase, run.times[i].begin, run.times[last].end});
    i = last + 1;
  }
  return spans;
}

std::string record_label(const Program& program, const Record& record) {
  const auto& scope = program.scopes[record.scope];
  return scope.empty() ? record_name(record) : record_name(record) + ' ' + scope;
}

std::string_view stage_name(train::Stage stage) {
  constexpr std::string_view names[] = {"data wait", "forward and backward", "update", "evaluation", "save"};
  return names[static_cast<int>(stage)];
}

bool is_collective(std::string_view op) {
  constexpr std::string_view names[] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all",
                                        "broadcast",  "send",           "recv",       "barrier"};
  return std::any_of(std::begin(names), std::end(names), [&](std::string_view n) { return op.starts_with(n); });
}

}  // namespace hpcdl::lab
