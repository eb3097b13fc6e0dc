#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "cli/verb.h"

namespace hpcdl::cli {

void print_text(std::string_view text) {
  const bool ok = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  require(ok, "output", "cannot write to standard output: closed, or the disk is full");
}

void print_json(const Json& object) {
  print_text(object.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

void say_raw(std::string_view line) {
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fputc('\n', stderr);
}

bool colour() {
  static const bool on = isatty(STDERR_FILENO) && !std::getenv("NO_COLOR");
  return on;
}

std::string bold(std::string_view text) { return colour() ? fmt::format("\x1b[1m{}\x1b[0m", text) : std::string(text); }
std::string dim(std::string_view text) { return colour() ? fmt::format("\x1b[2m{}\x1b[0m", text) : std::string(text); }

}  // namespace hpcdl::cli
