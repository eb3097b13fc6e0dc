// Filters of any value and of text.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "hpcdl/io/jinja/call.h"
#include "hpcdl/io/jinja/text.h"
#include "hpcdl/io/unicode.h"

namespace hpcdl::io::jinja {
namespace {

Value filter_default(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {"default_value", "boolean"});
  const bool by_truth = truth(args.get(1, "boolean", Value(false)));
  if (!value.undefined() && !(by_truth && !truth(value))) return value;
  return args.get(0, "default_value", text_value(""));
}

Value filter_string(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {});
  return value.text() ? value : run.text(str(run, value));
}

Value filter_safe(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {});
  return run.text(str(run, value), true);
}

Value filter_escape(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {});
  return value.safe() ? value : run.text(escape_html(str(run, value)), true);
}

Value filter_trim(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {"chars"});
  const std::string text = str(run, value);
  return run.text(std::string(strip(text, args.get(0, "chars", Value(None{})), true, true, run)));
}

Value filter_upper(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {});
  return run.text(to_upper(str(run, value)));
}

Value filter_lower(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {});
  return run.text(to_lower(str(run, value)));
}

Value filter_capitalize(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {});
  return run.text(capitalized(str(run, value)));
}

Value filter_title(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {});
  return run.text(titled(str(run, value), "-({[<"));
}

Value filter_replace(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {"old", "new", "count"});
  const Value count = args.get(2, "count", Value(None{}));
  return run.text(replaced(run, str(run, value), str(run, args.need(run, 0, "old")), str(run, args.need(run, 1, "new")),
                           count.none() ? -1 : need_whole(run, count, "the count of replace")));
}

Value filter_indent(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {"width", "first", "blank"});
  const Value width = args.get(0, "width", Value(std::int64_t{4}));
  std::string indent;
  if (width.text()) indent = *width.text();
  else
    indent.assign(static_cast<std::size_t>(std::clamp<std::int64_t>(need_whole(run, width, "the width"), 0, 1024)),
                  ' ');
  const bool first = truth(args.get(1, "first", Value(false))), blank = truth(args.get(2, "blank", Value(false)));
  const std::string text = str(run, value) + "\n";
  std::string out;
  bool begins = true;
  for (const std::string_view line : lines_of(text, false)) {
    if (!begins) out += '\n';
    if (begins ? first : blank || !line.empty()) out += indent;
    out += line;
    begins = false;
    run.bytes(indent.size());
  }
  return run.text(std::move(out));
}

Value filter_format(Run& run, const Value& value, Arguments& args) {
  if (!args.named.empty()) run.fail("the filter format with names is not supported");
  return run.text(format_percent(run, str(run, value), run.list(args.positional, Form::tuple)));
}

Value filter_abs(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {});
  return need_number(run, value, "the value of abs") < 0 ? negative(run, value)
                                                         : arithmetic(run, '+', value, Value(std::int64_t{0}));
}

/// The number in a text, as float() of Python reads it.
std::optional<double> parse_real(std::string_view text) {
  text = strip_spaces(text);
  if (text.starts_with('+')) text.remove_prefix(1);
  double out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return text.empty() || error != std::errc{} || end != text.data() + text.size() ? std::nullopt : std::optional(out);
}

Value real_to_whole(Run& run, double value) {
  if (!(std::fabs(value) < 9.2e18)) run.fail("{} is not an integer of 64 bits", real_text(value));
  return Value(static_cast<std::int64_t>(value));
}

Value filter_int(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {"default", "base"});
  need_defined(run, value);
  const Value otherwise = args.get(0, "default", Value(std::int64_t{0}));
  const std::int64_t base = need_whole(run, args.get(1, "base", Value(std::int64_t{10})), "the base");
  if (base < 2 || base > 36) run.fail("the base {} is not supported (2 to 36 are)", base);
  if (value.real()) return std::isfinite(*value.real()) ? real_to_whole(run, *value.real()) : otherwise;
  if (value.number()) return arithmetic(run, '+', value, Value(std::int64_t{0}));
  if (!value.text()) return otherwise;
  std::string_view text = strip_spaces(*value.text());
  if (text.starts_with('+')) text.remove_prefix(1);
  std::int64_t out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out, static_cast<int>(base));
  if (error == std::errc::result_out_of_range) run.fail("{} is not an integer of 64 bits", text);
  if (!text.empty() && error == std::errc{} && end == text.data() + text.size()) return Value(out);
  const auto real = parse_real(text);
  return real && std::isfinite(*real) ? real_to_whole(run, *real) : otherwise;
}

Value filter_float(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {"default"});
  need_defined(run, value);
  const Value otherwise = args.get(0, "default", Value(0.0));
  if (value.number()) return Value(need_number(run, value, "the value"));
  const auto real = value.text() ? parse_real(*value.text()) : std::nullopt;
  return real ? Value(*real) : otherwise;
}

Value filter_round(Run& run, const Value& value, Arguments& args) {
  args.expect(run, {"precision", "method"});
  const std::int64_t precision = need_whole(run, args.get(0, "precision", Value(std::int64_t{0})), "the precision");
  const std::string method = str(run, args.get(1, "method", text_value("common")));
  const double number = need_number(run, value, "the value of round");
  if (precision < 0 || precision > 17) run.fail("the precision {} is not supported (0 to 17 are)", precision);
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (method == "ceil") return Value(std::ceil(number * scale) / scale);
  if (method == "floor") return Value(std::floor(number * scale) / scale);
  if (method != "common") run.fail("the method of round is '{}'; expected common, ceil or floor", method);
  if (!value.real()) return value;
  const std::string text = fmt::format("{:.{}f}", number, precision);
  return Value(parse_real(text).value_or(number));
}

}  // namespace

Filter find_text_filter(std::string_view name) {
  static const std::map<std::string_view, Filter> kAll = {{"default", filter_default},
                                                          {"d", filter_default},
                                                          {"string", filter_string},
                                                          {"safe", filter_safe},
                                                          {"escape", filter_escape},
                                                          {"e", filter_escape},
                                                          {"trim", filter_trim},
                                                          {"upper", filter_upper},
                                                          {"lower", filter_lower},
                                                          {"title", filter_title},
                                                          {"capitalize", filter_capitalize},
                                                          {"replace", filter_replace},
                                                          {"indent", filter_indent},
                                                          {"format", filter_format},
                                                          {"abs", filter_abs},
                                                          {"int", filter_int},
                                                          {"float", filter_float},
                                                          {"round", filter_round},
                                                          {"tojson", to_json},
                                                          {"from_json", from_json}};
  const auto found = kAll.find(name);
  return found == kAll.end() ? nullptr : found->second;
}

Filter find_filter(std::string_view name) {
  const Filter text = find_text_filter(name);
  return text ? text : find_list_filter(name);
}

}  // namespace hpcdl::io::jinja
