#include "cli/command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <concepts>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace hpcdl::cli {
namespace {

/// A check in our own words. --help shows it as part of the option's kind, without the parser's description.
CLI::Validator worded(std::function<std::string(const std::string&)> check) {
  return CLI::Validator([check = std::move(check)](std::string& text) { return check(text); }, "");
}

/// Checks that a value can be parsed; its range is checked afterwards.
template <class T> std::string cannot_be_read(const std::string& text) {
  T value{};
  if (CLI::detail::lexical_cast(text, value)) return "";
  return fmt::format("expected {}, found {}", std::integral<T> ? "an integer" : "a number",
                     text.empty() ? "nothing" : text);
}

/// Comparing only with the ends of the range would accept NaN.
template <class T> CLI::Validator between(T least, T most) {
  return worded([least, most](const std::string& text) {
    T value{};
    const bool inside = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
    return inside ? "" : fmt::format("expected a number from {} to {}, found {}", least, most, text);
  });
}

CLI::Validator at_least(const std::string& what, const CLI::Validator& range) {
  return worded([what, range](const std::string& text) {
    double value = 0;
    const bool number = CLI::detail::lexical_cast(text, value) && !std::isnan(value);
    return number && range(text).empty() ? "" : fmt::format("expected a number {}, found {}", what, text);
  });
}

/// "off, cached or full".
template <class T> CLI::Option* one_among(CLI::Option* option, const std::vector<T>& values) {
  std::string list;
  for (std::size_t i = 0; i < values.size(); ++i)
    list += fmt::format("{}{}", i == 0 ? "" : i + 1 == values.size() ? " or " : ", ", values[i]);
  const CLI::Validator member = CLI::IsMember(values);
  option->check(worded([list, member](const std::string& text) {
    return member(text).empty() ? "" : fmt::format("expected {}, found {}", list, text);
  }));
  return option->type_name(fmt::format("{}", fmt::join(values, "|")));
}

}  // namespace

Option Option::required() const { return Option(option_->required()); }
Option Option::range(std::int64_t least, std::int64_t most) const {
  return Option(option_->check(between(least, most))->type_name(fmt::format("{}..{}", least, most)));
}
Option Option::range(double least, double most) const {
  return Option(option_->check(between(least, most))->type_name(fmt::format("{}..{}", least, most)));
}
Option Option::positive() const {
  return Option(option_->check(at_least("above 0", CLI::PositiveNumber))->type_name("N>0"));
}
Option Option::not_negative() const {
  return Option(option_->check(at_least("of 0 or more", CLI::NonNegativeNumber))->type_name("N>=0"));
}
Option Option::one_of(std::initializer_list<const char*> words) const {
  return one_of(std::vector<std::string>(words.begin(), words.end()));
}
Option Option::one_of(const std::vector<std::string>& words) const { return Option(one_among(option_, words)); }
Option Option::one_of(const std::vector<int>& numbers) const { return Option(one_among(option_, numbers)); }
Option Option::values(int least, int most) const { return Option(option_->expected(least, most)); }
Option Option::one_each() const { return Option(option_->allow_extra_args(false)); }
Option Option::separated_by(char delimiter) const { return Option(option_->delimiter(delimiter)); }
Option Option::shows_default() const { return Option(option_->capture_default_str()); }
Option Option::kind(const std::string& name) const { return Option(option_->type_name(name)); }
Option Option::described_as(const std::string& text) const { return Option(option_->option_text(text)); }
Option Option::group(const std::string& name) const { return Option(option_->group(name)); }

template <class T> Option Command::option(const std::string& names, T& value, const std::string& help) const {
  auto* option = app_->add_option(names, value, help);
  if constexpr (std::is_arithmetic_v<T>) option->check(cannot_be_read<T>);
  else if constexpr (std::is_arithmetic_v<typename T::value_type> && !std::is_same_v<T, std::string>)
    option->check(cannot_be_read<typename T::value_type>);
  if constexpr (std::unsigned_integral<T>)  // the parser reads -1 as the largest number
    option->check([](const std::string& text) {
      return text.starts_with('-') ? "expected a number of 0 or more, found " + text : std::string();
    });
  return Option(option);
}
template Option Command::option(const std::string&, std::string&, const std::string&) const;
template Option Command::option(const std::string&, int&, const std::string&) const;
template Option Command::option(const std::string&, std::int64_t&, const std::string&) const;
template Option Command::option(const std::string&, std::uint64_t&, const std::string&) const;
template Option Command::option(const std::string&, float&, const std::string&) const;
template Option Command::option(const std::string&, double&, const std::string&) const;
template Option Command::option(const std::string&, std::vector<std::string>&, const std::string&) const;
template Option Command::option(const std::string&, std::vector<int>&, const std::string&) const;
template Option Command::option(const std::string&, std::vector<double>&, const std::string&) const;

Option Command::flag(const std::string& names, bool& value, const std::string& help) const {
  return Option(app_->add_flag(names, value, help));
}
Command Command::subcommand(const std::string& name, const std::string& help) const {
  return Command(app_->add_subcommand(name, help));
}
void Command::footer(const std::string& text) const { app_->footer(text); }
void Command::needs_subcommand() const { app_->require_subcommand(1); }
void Command::takes_rest() const { app_->allow_extras(); }
std::vector<std::string> Command::rest() const { return app_->remaining(); }
std::vector<std::string> Command::option_names() const {
  std::vector<std::string> names;
  for (const auto* option : app_->get_options())
    for (const auto& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}
const CLI::App* Command::program() const {
  const auto* app = static_cast<const CLI::App*>(app_);
  while (app->get_parent()) app = app->get_parent();
  return app;
}
bool Command::given(const std::string& option) const { return app_->count(option) > 0; }
bool Command::chosen(const std::string& subcommand) const { return app_->got_subcommand(subcommand); }
void Command::when_chosen(std::function<void()> f) const { app_->callback(std::move(f)); }

}  // namespace hpcdl::cli
