#pragma once
// The options of sampling, for the verbs that generate text.

#include <string>
#include <vector>

#include "cli/command.h"
#include "hpcdl/infer/generation_config.h"

namespace hpcdl::cli {

struct SamplingWords {
  infer::SamplingOptions options;
  std::vector<std::string> stop;  // strings
  std::string stop_ids, banned_ids, allowed_ids;
  std::vector<std::string> bias;  // "ID:NUMBER"
  std::string origins;            // after complete(): the rules that a folder can set, one a line, and who set them

  /// Reads the words, and returns all of them. Throws UsageError.
  const infer::SamplingOptions& checked(const std::string& verb);
  /// Takes what the command line does not say from the folder of the model.
  void complete(const Command& verb, const infer::GenerationConfig& config);
  /// All of them in one text, to be compared between ranks.
  std::string text() const;
};

void add_sampling_options(const Command& sub, SamplingWords& o);
/// --spec: what proposes tokens; see serve::Draft.
void add_spec_option(const Command& sub, std::string& word);

}  // namespace hpcdl::cli
