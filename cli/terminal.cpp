// Standard error for people: lines that stay and, on a terminal, the bar below them.

#include <fmt/chrono.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <optional>
#include <utility>

#include "cli/verb.h"
#include "cli/wrap.h"

namespace hpcdl::cli {

namespace {

constexpr auto kBetweenBars = std::chrono::milliseconds(100);
constexpr std::size_t kUsualColumns = 80;
constexpr int kStampColumns = 20;  // "2026-11-24 03:46:38 "

std::string or_empty(const char* value) { return value ? value : ""; }
std::string variable(const char* name) { return or_empty(std::getenv(name)); }

bool wants_timestamps() {
  const auto value = or_empty(std::getenv("HPCDL_TIMESTAMPS"));
  return !value.empty() && value != "0";
}

/// A terminal that understands cursor movements and erasing.
bool is_terminal() {
  static const bool is = isatty(STDERR_FILENO) && !variable("TERM").empty() && variable("TERM") != "dumb";
  return is;
}

bool writes_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    auto value = variable(name);
    if (value.empty()) continue;
    std::transform(value.begin(), value.end(), value.begin(), [](unsigned char c) { return std::tolower(c); });
    return value.ends_with("utf-8") || value.ends_with("utf8");
  }
  return false;
}

/// Whether a terminal that is made narrower wraps lines that are now too long. Those that do not, like xterm and the
/// console of Linux, cut them off.
bool reflows() {
  const auto term = variable("TERM");
  return variable("XTERM_VERSION").empty() && term != "linux" &&
         !(term.starts_with("screen") && variable("TMUX").empty());
}

int columns() { return static_cast<int>(columns_of(STDERR_FILENO, kUsualColumns)); }

std::atomic<bool> bar_stands{false};  // read by a signal handler
static_assert(std::atomic<bool>::is_always_lock_free);

/// All threads of a process write through one object, including ranks that are threads.
class Terminal {
 public:
  void line(std::string_view text) {
    const std::lock_guard lock(mutex_);
    std::string out = erased();
    if (timestamps_) out += fmt::format("{:%Y-%m-%d %H:%M:%S} ", fmt::localtime(std::time(nullptr)));
    out.append(text).append("\n");
    write(out + (bar_ ? drawn() : ""));
  }

  void bar(const Bar* bar) {
    const std::lock_guard lock(mutex_);
    if (!bar) {
      bar_.reset(), last_ = {};
      return write(erased());
    }
    const auto now = Clock::now();
    if (now - last_ < kBetweenBars) return;
    last_ = now;
    bar_ = *bar;
    const auto out = erased();
    write(out + drawn());
  }

  int columns_of_line() {
    const std::lock_guard lock(mutex_);
    return columns() - (timestamps_ ? kStampColumns : 0);
  }

  void stamp() {
    const std::lock_guard lock(mutex_);
    timestamps_ = true;
  }

 private:
  /// The escapes that remove the bar, from all the lines that it fills if the terminal has been made narrower since.
  std::string erased() {
    if (!std::exchange(width_, 0)) return "";
    bar_stands.store(false);
    const int now = std::max(columns(), 1), above = reflows() ? (drawn_width_ - 1) / now : 0;
    return above > 0 ? fmt::format("\x1b[{}A\r\x1b[J", above) : "\r\x1b[K";
  }
  std::string drawn() {
    width_ = columns();
    auto text = bar_line(*bar_, {.columns = width_, .unicode = unicode_, .colour = colour()});
    drawn_width_ = shown_width(text);
    bar_stands.store(true);
    return text;
  }
  /// The text without the escapes that colour it.
  static int shown_width(const std::string& text) {
    int n = 0;
    for (std::size_t at = 0; at < text.size(); ++at) {
      if (text[at] == '\x1b') at = text.find('m', at);
      else n += (static_cast<unsigned char>(text[at]) & 0xC0) != 0x80;
    }
    return n;
  }
  static void write(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
  }

  std::mutex mutex_;
  std::optional<Bar> bar_;
  int width_ = 0, drawn_width_ = 0;  // columns of the terminal when the bar was drawn, 0: it was not; and of the bar
  Clock::time_point last_{};
  bool unicode_ = writes_utf8(), timestamps_ = wants_timestamps();
};

Terminal& terminal() {
  static Terminal one;
  return one;
}

}  // namespace

void say_raw(std::string_view line) { terminal().line(line); }

void stamp_lines() { terminal().stamp(); }

void leave_bar() {
  if (bar_stands.load()) [[maybe_unused]]
    const auto lost = write(STDERR_FILENO, "\n", 1);
}

bool colour() {
  static const bool on = is_terminal() && variable("NO_COLOR").empty();
  return on;
}

Console console() {
  Console c;
  c.line = [](std::string_view line) { say_raw(line); };
  if (!is_terminal()) return c;
  c.bar = [](const Bar* bar) { terminal().bar(bar); };
  c.columns = [] { return terminal().columns_of_line(); };
  return c;
}

void say_lines(const Console& to, std::string_view text) { train::Progress(to).say_lines(text); }

std::string bold(std::string_view text) { return colour() ? fmt::format("\x1b[1m{}\x1b[0m", text) : std::string(text); }
std::string dim(std::string_view text) { return colour() ? fmt::format("\x1b[2m{}\x1b[0m", text) : std::string(text); }

}  // namespace hpcdl::cli
