#include "cli/command.h"

#include <CLI/CLI.hpp>
#include <cmath>

namespace hpcdl::cli {
namespace {

/// A NaN lies in every range: no comparison with it holds.
CLI::Validator no_nan(CLI::Validator range) {
  return CLI::Validator(
      [range](std::string& text) {
        double value = 0;
        const bool nan = CLI::detail::lexical_cast(text, value) && std::isnan(value);
        return nan ? "expected a number, found " + text : range(text);
      },
      range.get_description());
}

/// The parser's own words for a range without an end write the largest double out.
CLI::Validator at_least(const std::string& what, CLI::Validator range) {
  return CLI::Validator(
      [what, range = no_nan(range)](std::string& text) {
        return range(text).empty() ? std::string() : "expected a number of " + what + ", found " + text;
      },
      range.get_description());
}

}  // namespace

Option Option::required() const { return Option(option_->required()); }
Option Option::range(std::int64_t least, std::int64_t most) const {
  return Option(option_->check(CLI::Range(least, most)));
}
Option Option::range(double least, double most) const {
  return Option(option_->check(no_nan(CLI::Range(least, most))));
}
Option Option::positive() const { return Option(option_->check(at_least("more than 0", CLI::PositiveNumber))); }
Option Option::not_negative() const { return Option(option_->check(at_least("0 or more", CLI::NonNegativeNumber))); }
Option Option::one_of(std::initializer_list<const char*> words) const {
  return Option(option_->check(CLI::IsMember(std::vector<std::string>(words.begin(), words.end()))));
}
Option Option::one_of(std::initializer_list<int> numbers) const {
  return Option(option_->check(CLI::IsMember(std::vector<int>(numbers))));
}
Option Option::values(int least, int most) const { return Option(option_->expected(least, most)); }
Option Option::one_each() const { return Option(option_->allow_extra_args(false)); }
Option Option::separated_by(char delimiter) const { return Option(option_->delimiter(delimiter)); }
Option Option::shows_default() const { return Option(option_->capture_default_str()); }
Option Option::kind(const std::string& name) const { return Option(option_->type_name(name)); }
Option Option::described_as(const std::string& text) const { return Option(option_->option_text(text)); }
Option Option::group(const std::string& name) const { return Option(option_->group(name)); }

template <class T> Option Command::option(const std::string& names, T& value, const std::string& help) const {
  auto* option = app_->add_option(names, value, help);
  if constexpr (std::unsigned_integral<T>)  // the parser takes -1 for the largest number
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
void Command::takes_rest() const { app_->allow_extras(); }
std::vector<std::string> Command::rest() const { return app_->remaining(); }
bool Command::given(const std::string& option) const { return app_->count(option) > 0; }
bool Command::chosen(const std::string& subcommand) const { return app_->got_subcommand(subcommand); }
void Command::when_chosen(std::function<void()> f) const { app_->callback(std::move(f)); }

}  // namespace hpcdl::cli
