#pragma once
// --threads N, for the verbs that compute.

#include <string>
#include <string_view>
#include <vector>

#include "cli/verb.h"

namespace hpcdl::cli {

struct ThreadsOption {
  int count = 0;  // 0: not given
  /// Threads for a Pool. Throws UsageError if they are more than the machine can use; `verb` is for its message.
  int checked(std::string_view verb) const;
};

void add_threads_option(const Command& sub, ThreadsOption& o,
                        const std::string& help = "CPU threads; default: as many as can run at once");

/// Appends "--train.threads=N" to the words if --threads was given.
void add_override(std::vector<std::string>& words, const ThreadsOption& o);

}  // namespace hpcdl::cli
