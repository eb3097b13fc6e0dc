#pragma once
// Runs of pairs of settings on ranks that are threads, against the same run on one rank.

#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "tools/compose/settings.h"

namespace hpcdl::lab {

/// The largest difference of two runs: of losses and norms relative to their value, of weights absolute.
struct RunDifference {
  double value = 0;
  std::string where;  // "loss", or the name of a tensor
};

/// What became of a pair.
struct Composed {
  enum class Outcome { matched, refused, differs };
  std::string name;
  int ranks = 1;
  Outcome outcome = Outcome::matched;
  std::string why;  // it was refused
  RunDifference difference;
  double allowed = 0;
};

class Composer {
 public:
  /// `folder`: for the text and the runs; it may be removed afterwards.
  explicit Composer(std::filesystem::path folder);

  /// Errors other than refusals are thrown.
  Composed run(const SettingPair& pair);

 private:
  std::filesystem::path run_on(int ranks, const std::function<void(train::RunConfig&)>& configure);
  const std::filesystem::path& reference(const SettingPair& pair);

  std::filesystem::path folder_;
  std::map<std::string, std::filesystem::path> references_;  // by config
  int runs_ = 0;
};

std::string_view outcome_name(Composed::Outcome o);
nlohmann::json to_json(const Composed& one);
/// One line.
std::string to_text(const Composed& one);

}  // namespace hpcdl::lab
