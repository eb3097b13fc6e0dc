#pragma once
// Sub-commands and their options, declared in chains: `c.option("--rounds", o.rounds, "Rounds").range(1,
// 1000).shows_default()`. The parser itself, a header of 20,000 lines, is seen by command.cpp and main.cpp alone.

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace hpcdl::cli {

/// A handle on an option; the parser owns it.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option required() const;
  Option range(std::int64_t least, std::int64_t most) const;
  Option range(double least, double most) const;
  template <std::integral T> Option range(T least, T most) const {
    return range(std::int64_t{least}, std::int64_t{most});
  }
  Option positive() const;
  Option not_negative() const;
  Option one_of(std::initializer_list<const char*> words) const;
  Option one_of(std::initializer_list<int> numbers) const;
  /// As many values as these after one name.
  Option values(int least, int most) const;
  /// One value each time that a repeatable option is named, so that a positional word may follow.
  Option one_each() const;
  Option separated_by(char delimiter) const;

  // What --help shows.
  Option shows_default() const;
  Option kind(const std::string& name) const;
  /// Stands for kind, range and default.
  Option described_as(const std::string& text) const;
  Option group(const std::string& name) const;

 private:
  CLI::Option* option_;
};

/// A handle on a sub-command; the parser owns it.
class Command {
 public:
  explicit Command(CLI::App* app) : app_(app) {}

  /// T: bool is a flag(); std::string, int, std::int64_t, std::uint64_t, float, double, and vectors of strings, ints
  /// and doubles.
  template <class T> Option option(const std::string& names, T& value, const std::string& help) const;
  Option flag(const std::string& names, bool& value, const std::string& help) const;
  Command subcommand(const std::string& name, const std::string& help) const;
  /// Behind the options in --help.
  void footer(const std::string& text) const;
  /// Words that no option takes are left for rest().
  void takes_rest() const;
  std::vector<std::string> rest() const;

  /// "--model" and so on, the long ones.
  std::vector<std::string> option_names() const;
  /// What this is a command of, or of a command of: every verb with its options.
  const CLI::App* program() const;
  bool given(const std::string& option) const;
  bool chosen(const std::string& subcommand) const;
  /// Called once this command was parsed.
  void when_chosen(std::function<void()> f) const;

 private:
  CLI::App* app_;
};

}  // namespace hpcdl::cli
