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

/// A reference to an option, which the parser owns.
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
  Option one_of(const std::vector<std::string>& words) const;
  Option one_of(const std::vector<int>& numbers) const;
  /// Takes several values after one name.
  Option values(int least, int most) const;
  /// Takes one value each time the option is given, so that a positional word may follow.
  Option one_each() const;
  Option separated_by(char delimiter) const;

  // Sets what --help shows.
  Option shows_default() const;
  Option kind(const std::string& name) const;
  /// Replaces kind, range and default in --help.
  Option described_as(const std::string& text) const;
  Option group(const std::string& name) const;

 private:
  CLI::Option* option_;
};

/// A reference to a sub-command, which the parser owns.
class Command {
 public:
  explicit Command(CLI::App* app) : app_(app) {}

  /// T: bool is a flag(); std::string, int, std::int64_t, std::uint64_t, float, double, and vectors of strings, ints
  /// and doubles.
  template <class T> Option option(const std::string& names, T& value, const std::string& help) const;
  Option flag(const std::string& names, bool& value, const std::string& help) const;
  Command subcommand(const std::string& name, const std::string& help) const;
  /// Printed after the options in --help.
  void footer(const std::string& text) const;
  /// One of its sub-commands must be given.
  void needs_subcommand() const;
  /// Words that no option takes are kept for rest().
  void takes_rest() const;
  std::vector<std::string> rest() const;

  /// The long names: "--model" and so on.
  std::vector<std::string> option_names() const;
  /// The root of the command tree, which holds every verb with its options.
  const CLI::App* program() const;
  bool given(const std::string& option) const;
  bool chosen(const std::string& subcommand) const;
  /// Called after this command was parsed.
  void when_chosen(std::function<void()> f) const;

 private:
  CLI::App* app_;
};

}  // namespace hpcdl::cli
