#pragma once
// Shows the progress of long work to people: on a terminal one line at the bottom that is redrawn,
// for any width; elsewhere a whole line from time to time.

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "hpcdl/core/clock.h"

namespace hpcdl {

/// A part of a bar, and its short form for narrow terminals; empty: the same.
struct Fact {
  std::string text, brief = {};
};

/// The progress of some work.
struct Bar {
  std::string what = {};         // "tokenizing"
  double done = -1;              // share, 0 to 1; < 0: not known
  std::vector<Fact> facts = {};  // the most important first
  std::size_t needed = 0;        // number of parts that are shown at any width; the others only if there is room
  double seconds_left = -1;      // < 0: not known
};

struct BarStyle {
  int columns = 80;
  bool unicode = false, colour = false;
};

/// One line, less than `columns` wide.
std::string bar_line(const Bar& bar, const BarStyle& style);
/// "12 s", "3m 20s", "2h 05m", "4d 02h"; never less than a second.
std::string time_left(double seconds);
/// Those of the parts that fit into one line, two blanks apart; the first is always there. columns = 0: all of them.
std::string parts_line(const std::vector<std::string>& parts, int columns);

/// Functions that print lines. Null functions drop them.
struct Console {
  std::function<void(std::string_view)> line;  // a whole line, which stays
  std::function<void(const Bar*)> bar = {};    // the line at the bottom; null pointer: none. Null without a terminal
  std::function<int()> columns = {};           // of the terminal
};

/// Some work, from its first show() until its end. Without a terminal a line every ten seconds, so none for short work.
class Work {
 public:
  explicit Work(Console console) : console_(std::move(console)) {}
  Work(const Work&) = delete;
  ~Work() { end(); }
  /// Another `what` starts again: the remaining time is computed from then. `share` of it is done.
  void show(std::string_view what, double share, std::vector<Fact> facts = {});
  void end();
  double seconds() const { return seconds_since(begin_); }  // of what is shown

 private:
  Console console_;
  std::string what_;
  Clock::time_point begin_{}, said_{};
  bool shown_ = false;
};

/// For work that does not report its progress: shows its name and its time after two seconds.
class Waiting {
 public:
  Waiting(Console console, std::string what);
  Waiting(const Waiting&) = delete;
  ~Waiting();

 private:
  void watch(Clock::time_point begin);
  Console console_;
  std::string what_;
  std::mutex mutex_;
  std::condition_variable over_cv_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace hpcdl
