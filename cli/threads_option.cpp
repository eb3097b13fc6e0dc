#include "cli/threads_option.h"

#include <fmt/format.h>

#include "hpcdl/core/thread_limit.h"

namespace hpcdl::cli {

int ThreadsOption::checked(std::string_view verb) const {
  check_threads(count, verb, "--threads");
  return count;
}

void add_threads_option(const Command& sub, ThreadsOption& o, const std::string& help) {
  sub.option("--threads", o.count, help);
}

void add_override(std::vector<std::string>& words, const ThreadsOption& o) {
  if (o.count != 0) words.push_back(fmt::format("--train.threads={}", o.count));
}

}  // namespace hpcdl::cli
