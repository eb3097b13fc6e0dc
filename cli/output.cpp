#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/verb.h"
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
  // Opening and closing a pipe here would give its reader an end of file.
  const bool may = ::access(path.c_str(), W_OK) == 0;  // first: a call may read errno before its other arguments
  require(may, "io", "{}: cannot be written: {}", path, std::strerror(errno));
}

void print_text(std::string_view text) {
  if (const auto c = console(); c.bar) c.bar(nullptr);  // standard output may be the same terminal
  const bool ok = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!ok && errno == EPIPE) throw ReaderGone("[output] standard output was closed by its reader");
  require(ok, "output", "cannot write to standard output: closed, or the disk is full");
}

void print_json(const Json& object) { print_text(object.dump(1, ' ', false, Json::error_handler_t::replace) + "\n"); }

std::string read_stdin() {
  std::string text;
  char block[1 << 16];
  for (std::size_t n; (n = std::fread(block, 1, sizeof block, stdin)) > 0;) text.append(block, n);
  require(!std::ferror(stdin), "input", "cannot read standard input");
  return text;
}

}  // namespace hpcdl::cli
