#pragma once
// A tuning session: remembered choices, missing choices, results.

#include <nlohmann/json_fwd.hpp>

#include "tools/tune/gpu.h"

namespace hpcdl::lab::tune {

/// off: built-in choices. cached: remembered choices, nothing is measured. full: missing choices are measured first.
enum class Mode : std::uint8_t { off, cached, full };
/// Throws UsageError.
Mode mode_from_name(std::string_view name);

struct Report {
  std::vector<Outcome> outcomes;     // of this session
  std::vector<std::string> skipped;  // why a wish was not tuned
  int remembered = 0;                // wishes that were in the file
};

/// For one GPU; must not be used during a step.
class Session {
 public:
  /// Reads the file. `say` is called with lines for people: about a damaged file, about
  /// progress.
  Session(Device device, Pool& pool, Mode mode, const std::string& version, std::function<void(std::string_view)> say);

  /// Tunes the `wishes` that are not remembered (all of them if `anew`), within the budget, and writes
  /// the file. A file that cannot be written is reported, but is not an error.
  Report tune(const Wishes& wishes, const Budget& budget, bool anew = false);
  /// In mode full: tune() for the programs; otherwise nothing.
  Report prepare(const std::vector<const Instance*>& programs, double seconds);

  const Cache& cache() const { return cache_; }
  /// What is remembered now, for streams and runs.
  std::shared_ptr<const Ways> ways() const;
  const std::filesystem::path& file() const { return file_; }

 private:
  StepParams params_;
  Stream stream_;
  Pool& pool_;
  Mode mode_;
  std::function<void(std::string_view)> say_;
  Identity identity_;
  std::filesystem::path file_;
  Cache cache_;
};

/// Least seconds for some work on this GPU; null, or 0: not known.
using LightOf = std::function<double(const Cost&)>;
/// The table on which a choice is based.
std::string to_text(const Outcome& o, const LightOf& light);
nlohmann::ordered_json to_json(const Outcome& o, const LightOf& light);

}  // namespace hpcdl::lab::tune
