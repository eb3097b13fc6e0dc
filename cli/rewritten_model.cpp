#include "cli/rewritten_model.h"

#include <nlohmann/json.hpp>
#include <regex>

#include "hpcdl/data/tokenize.h"

namespace hpcdl::cli {

std::function<bool(const std::string&)> kept_by(const std::string& pattern, std::string_view verb) {
  if (pattern.empty()) return nullptr;
  try {
    return [regex = std::regex(pattern)](const std::string& name) { return std::regex_search(name, regex); };
  } catch (const std::regex_error&) {
    fail_usage(verb, "--keep: expected a regular expression, found \"{}\"", pattern);
  }
}

Compared evaluate_both(const std::filesystem::path& from, const std::filesystem::path& out,
                       const std::vector<std::string>& text, Pool& pool) {
  const auto ids = encode_text(io::Tokenizer::load(from), text, pool, 0);
  return {.before = infer::evaluate(models::LanguageModel::open(from), pool, ids),
          .after = infer::evaluate(models::LanguageModel::open(out), pool, ids)};
}

void print_report(Json report, const std::string& out, const Json& comparison) {
  report["out"] = out;
  if (!comparison.is_null()) report.update(comparison);
  print_json(report);
}

}  // namespace hpcdl::cli
