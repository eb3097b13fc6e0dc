#pragma once
// What the verbs share that write a model folder with other matrices: quantize and compress.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/verb.h"
#include "hpcdl/infer/evaluate.h"
#include "hpcdl/models/calibration.h"

namespace hpcdl::cli {

/// Whether the pattern of --keep is found in a name; null if it is empty. Throws UsageError if it is no regular expression.
std::function<bool(const std::string&)> kept_by(const std::string& pattern, std::string_view verb);

/// The model whose inputs are watched, and what watches them.
struct WatchedInputs {
  models::LanguageModel model;
  models::ModelCalibration calibration;
  WatchedInputs(const std::filesystem::path& from, Pool& pool, std::span<const std::int32_t> tokens)
      : model(models::LanguageModel::open(from)), calibration(model, pool, tokens) {}
};

/// The original and the result on the same text.
struct Compared {
  infer::EvalResult before, after;
};
Compared evaluate_both(const std::filesystem::path& from, const std::filesystem::path& out,
                       const std::vector<std::string>& text, Pool& pool);

/// The report of the verb and the keys of `comparison` as one object; null: the result was not compared.
void print_report(Json report, const std::string& out, const Json& comparison);

}  // namespace hpcdl::cli
