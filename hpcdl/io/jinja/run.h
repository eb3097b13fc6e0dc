#pragma once
// One rendering: variables, what it may cost, and errors that name the line.

#include <fmt/format.h>

#include <cstdint>
#include <ctime>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hpcdl/io/jinja/value.h"

namespace hpcdl::io::jinja {

/// Bounds of a rendering. Prompts of a million characters need a small part of them.
struct Limits {
  std::int64_t steps = 10'000'000;
  std::int64_t bytes = std::int64_t{128} << 20;  // of all texts that are made
  int depth = 200;                               // of statements, expressions and macros within one another
};

/// The variables of one block of a template.
struct Frame {
  Frame* outer = nullptr;
  std::vector<std::pair<std::string_view, Value>> variables = {};

  void set(std::string_view name, Value value);
  const Value* find(std::string_view name) const;
};

class Run {
 public:
  Run(std::string_view name, std::time_t now, Limits limits) : name_(name), now_(now), left_(limits) {}

  /// Throws Error "NAME, line N: ...".
  [[noreturn]] void fail(std::string_view what) const;
  template <class... A> [[noreturn]] void fail(fmt::format_string<A...> format, A&&... args) const {
    fail(std::string_view(fmt::format(format, std::forward<A>(args)...)));
  }

  /// Charges for work; throws when the template takes too long.
  void steps(std::int64_t n = 1) {
    if ((left_.steps -= n) < 0) too_much("takes too many steps");
  }
  /// Makes values, and charges for their size.
  Value text(std::string text, bool safe = false);
  Value list(std::vector<Value> items, Form form = Form::list);
  Value dict(std::vector<std::pair<Value, Value>> items);
  void bytes(std::size_t n) {
    steps(1 + static_cast<std::int64_t>(n / 64));
    if ((left_.bytes -= static_cast<std::int64_t>(n)) < 0) too_much("makes too much text");
  }

  void print(std::string_view text) {
    bytes(text.size());
    *out += text;
  }

  Frame& new_frame(Frame* outer);
  /// A frame is used again unless a macro was made since, which may remember it.
  void release(Frame& frame, std::int64_t macros_before);
  std::int64_t macros = 0;  // made so far

  Namespace* new_namespace() { return steps(4), &namespaces_.emplace_back(); }
  Loop* new_loop() { return steps(4), &loops_.emplace_back(); }
  std::time_t now() const { return now_; }

  /// One level of nesting, on the stack.
  class Level {
   public:
    explicit Level(Run& run) : run_(run) {
      if (--run_.left_.depth < 0) run_.too_deep();
    }
    ~Level() { ++run_.left_.depth; }
    Level(const Level&) = delete;

   private:
    Run& run_;
  };

  int line = 0;                // of what is evaluated
  std::string* out = nullptr;  // where text goes
  Frame* frame = nullptr;      // the innermost

 private:
  [[noreturn]] void too_much(std::string_view what);
  [[noreturn]] void too_deep();

  std::string_view name_;
  std::time_t now_;
  Limits left_;
  std::deque<Frame> frames_;
  std::vector<Frame*> free_;
  std::deque<Namespace> namespaces_;
  std::deque<Loop> loops_;
};

/// Captures the text that is printed while it lives.
class Capture {
 public:
  explicit Capture(Run& run) : run_(run), outer_(run.out) { run_.out = &text; }
  ~Capture() { run_.out = outer_; }
  Capture(const Capture&) = delete;
  std::string text;

 private:
  Run& run_;
  std::string* outer_;
};

/// Enters a block with its own variables.
class Scope {
 public:
  Scope(Run& run, Frame* outer) : run_(run), before_(run.frame), frame_(run.new_frame(outer)), macros_(run.macros) {
    run_.frame = &frame_;
  }
  ~Scope() {
    run_.frame = before_;
    run_.release(frame_, macros_);
  }
  Scope(const Scope&) = delete;

 private:
  Run& run_;
  Frame* before_;
  Frame& frame_;
  std::int64_t macros_;
};

}  // namespace hpcdl::io::jinja
