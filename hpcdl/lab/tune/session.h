#pragma once
// Tuning as a whole: what is remembered, what is missing, what it came to.

#include <nlohmann/json_fwd.hpp>

#include "hpcdl/lab/tune/gpu.h"

namespace hpcdl::lab::tune {

/// off: the choices built in. cached: what is remembered, nothing is measured. full: what is missing is measured first.
enum class Mode : std::uint8_t { off, cached, full };
/// Throws UsageError.
Mode mode_from_name(std::string_view name);

struct Report {
  std::vector<Outcome> outcomes;     // of this session
  std::vector<std::string> skipped;  // why something wished for was not tuned
  int remembered = 0;                // wishes that the file answered
};

/// On one GPU; none of it may run in the middle of a step.
class Session {
 public:
  /// Reads the file and adopts its choices. `say` gets a line for people: of a damaged file, of what is being tuned.
  Session(Device device, Pool& pool, Mode mode, const std::string& version, std::function<void(std::string_view)> say);

  /// Tunes what of `wishes` is not remembered (everything, where `anew`), within the budget, adopts the choices and
  /// writes the file. A file that cannot be written is said, and no error.
  Report tune(const Wishes& wishes, const Budget& budget, bool anew = false);
  /// mode full: tune() of what the programs ask for; else nothing.
  Report prepare(const std::vector<const Instance*>& programs, double seconds);

  const Cache& cache() const { return cache_; }
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
/// The table that a choice was made from.
std::string to_text(const Outcome& o, const LightOf& light);
nlohmann::ordered_json to_json(const Outcome& o, const LightOf& light);

}  // namespace hpcdl::lab::tune
