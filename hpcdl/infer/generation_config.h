#pragma once
// How a model asks to be sampled: generation_config.json of its folder. What ends its texts is in models/hf_config.h.

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/infer/sampling_options.h"

namespace hpcdl::infer {

/// f(key, members...) for each rule that a file can set, where all objects have members of the same names.
void each_rule(auto&& f, auto&... o) {
  f("temperature", o.temperature...);
  f("top_k", o.top_k...);
  f("top_p", o.top_p...);
  f("min_p", o.min_p...);
  f("typical_p", o.typical_p...);
  f("repetition_penalty", o.repetition_penalty...);
  f("min_tokens", o.min_tokens...);
}

/// Values of options that are not given. "do_sample": false is temperature 0, and leaves the other rules of sampling out;
/// true without a temperature is temperature 1.
struct GenerationConfig {
  std::string file;  // its path; empty: there is none
  std::optional<float> temperature, top_p, min_p, typical_p, repetition_penalty;
  std::optional<int> top_k, min_tokens, max_tokens;  // the file calls them min_new_tokens and max_new_tokens
  std::vector<std::string> unused;  // keys of the file that would change texts in a way that is not supported

  /// Sets the rules that the file names, except for those of which `said` is true.
  void complete(SamplingOptions& options, const std::function<bool(std::string_view key)>& said) const;
  /// In one line; empty if all is used.
  std::string warning() const;
};

/// Throws Error for values that are out of range.
GenerationConfig read_generation_config(const std::filesystem::path& folder);

}  // namespace hpcdl::infer
