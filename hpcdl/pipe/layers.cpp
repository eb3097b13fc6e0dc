#include "hpcdl/pipe/layers.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <utility>

#include "hpcdl/core/error.h"
#include "hpcdl/nn/vocabulary_share.h"

namespace hpcdl::pipe {
namespace {

bool is_number(std::string_view word) {
  return !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c); });
}

}  // namespace

std::string layer_of(std::string_view scope) {
  const auto first = scope.substr(0, scope.find('.'));
  if (first.size() == scope.size()) return std::string(first);
  const auto rest = scope.substr(first.size() + 1), second = rest.substr(0, rest.find('.'));
  return std::string(is_number(second) ? scope.substr(0, first.size() + 1 + second.size()) : first);
}

bool is_of_vocabulary(std::string_view scope) { return scope.substr(scope.rfind('.') + 1) == nn::kVocabularyScope; }

bool divides_vocabulary(const Program& pass) {
  return std::ranges::any_of(pass.records, [&](const Record& r) { return is_of_vocabulary(pass.scopes[r.scope]); });
}

Layers layers_of(const Program& pass) {
  Layers layers;
  std::map<std::string, int> index;
  for (const auto& r : pass.records)
    if (auto name = layer_of(pass.scopes[r.scope]); r.phase == Phase::forward && !name.empty())
      if (index.try_emplace(name, static_cast<int>(layers.names.size())).second)
        layers.names.push_back(std::move(name));
  require(!layers.names.empty(), "pipe", "expected a program whose records are in layers, found none");
  const int last = static_cast<int>(layers.names.size()) - 1;
  for (const auto& r : pass.records) {
    const auto it = index.find(layer_of(pass.scopes[r.scope]));
    layers.of_record.push_back(it != index.end() ? it->second : r.phase == Phase::forward ? 0 : last);
  }
  return layers;
}

}  // namespace hpcdl::pipe
