#pragma once
// The options of sampling, for the verbs that generate text.

#include <string>
#include <vector>

#include "cli/command.h"
#include "hpcdl/infer/sampling_options.h"

namespace hpcdl::cli {

struct SamplingWords {
  infer::SamplingOptions options;
  std::vector<std::string> stop;  // strings
  std::string stop_ids, banned_ids;
  std::vector<std::string> bias;  // "ID:NUMBER"

  /// Reads the words, and returns all of them. Throws UsageError.
  const infer::SamplingOptions& checked(const std::string& verb);
  /// All of them in one text, to be compared between ranks.
  std::string text() const;
};

void add_sampling_options(const Command& sub, SamplingWords& o);
/// --spec: what proposes tokens; see serve::Draft.
void add_spec_option(const Command& sub, std::string& word);

}  // namespace hpcdl::cli
