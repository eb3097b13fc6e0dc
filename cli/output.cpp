#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/verb.h"
#include "cli/wrap.h"
#include "hpcdl/io/atomic_file.h"

namespace hpcdl::cli {

void end_by(int signal) {
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void check_writable(const std::string& path) {
  std::error_code none;
  if (path.empty()) return;
  if (!std::filesystem::is_fifo(path, none)) return static_cast<void>(io::AtomicFile{path});
  // Opened and closed again it would have come to its end for whoever reads it.
  const bool may = ::access(path.c_str(), W_OK) == 0;  // errno is read behind it: a call has no order of arguments
  require(may, "io", "{}: cannot be written: {}", path, std::strerror(errno));
}

void print_text(std::string_view text) {
  const bool ok = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!ok && errno == EPIPE) throw ReaderGone("[output] nobody reads standard output any more");
  require(ok, "output", "cannot write to standard output: closed, or the disk is full");
}

void print_json(const Json& object) { print_text(object.dump(1, ' ', false, Json::error_handler_t::replace) + "\n"); }

void say_raw(std::string_view line) {
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fputc('\n', stderr);
}

bool colour() {
  static const bool on = isatty(STDERR_FILENO) && !std::getenv("NO_COLOR");
  return on;
}

train::Console console() {
  static const char* term = std::getenv("TERM");
  train::Console c;
  c.line = [](std::string_view line) { say_raw(line); };
  if (isatty(STDERR_FILENO) && term && std::string_view(term) != "dumb")
    c.status = [last = std::chrono::steady_clock::time_point{}](std::string_view line) mutable {
      const auto now = std::chrono::steady_clock::now();
      if (!line.empty() && now - last < std::chrono::milliseconds(100)) return;
      last = line.empty() ? std::chrono::steady_clock::time_point{} : now;
      const auto text = fmt::format("\r\x1b[K{}", line.substr(0, columns_of(STDERR_FILENO, 120) - 1));
      std::fwrite(text.data(), 1, text.size(), stderr);
      std::fflush(stderr);
    };
  return c;
}

void say_lines(const train::Console& to, std::string_view text) { train::Progress(to).say_lines(text); }

std::string read_stdin() {
  std::string text;
  char block[1 << 16];
  for (std::size_t n; (n = std::fread(block, 1, sizeof block, stdin)) > 0;) text.append(block, n);
  require(!std::ferror(stdin), "input", "cannot read standard input");
  return text;
}

std::string bold(std::string_view text) { return colour() ? fmt::format("\x1b[1m{}\x1b[0m", text) : std::string(text); }
std::string dim(std::string_view text) { return colour() ? fmt::format("\x1b[2m{}\x1b[0m", text) : std::string(text); }

}  // namespace hpcdl::cli
