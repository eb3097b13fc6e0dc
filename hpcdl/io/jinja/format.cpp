// "%s" % value and "{}".format(value).
#include <cmath>

#include "hpcdl/io/jinja/call.h"

namespace hpcdl::io::jinja {
namespace {

/// "%d": a fraction is cut.
std::string whole_text(Run& run, const Value& value) {
  if (!value.real()) return std::to_string(need_whole(run, value, "a value of %d"));
  if (!(std::fabs(*value.real()) < 9.2e18)) run.fail("{} is not an integer of 64 bits", real_text(*value.real()));
  return std::to_string(static_cast<std::int64_t>(*value.real()));
}

}  // namespace

std::string format_percent(Run& run, std::string_view format, const Value& values) {
  const List* list = values.list();
  const bool tuple = list && list->form == Form::tuple;
  std::size_t used = 0;
  const auto next = [&]() -> const Value& {
    if (tuple ? used >= list->items.size() : used >= 1) run.fail("a format needs more values than it is given");
    return tuple ? list->items[used++] : (++used, values);
  };
  std::string out;
  for (std::size_t at = 0; at < format.size(); ++at) {
    if (format[at] != '%') {
      out += format[at];
      continue;
    }
    const char kind = at + 1 < format.size() ? format[++at] : '\0';
    if (kind == '%') out += '%';
    else if (kind == 's') out += str(run, next());
    else if (kind == 'r') out += repr(run, next());
    else if (kind == 'd' || kind == 'i') out += whole_text(run, next());
    else run.fail("the format %{} is not supported (%s, %r, %d and %% are)", kind);
    run.bytes(out.size() / 16);
  }
  if (tuple ? used < list->items.size() : used < 1 && !values.dict())
    run.fail("a format is given more values than it needs");
  return out;
}

std::string format_braces(Run& run, std::string_view format, const Arguments& args) {
  std::string out;
  std::size_t automatic = 0;
  for (std::size_t at = 0; at < format.size(); ++at) {
    const char c = format[at];
    if ((c == '{' || c == '}') && at + 1 < format.size() && format[at + 1] == c) {
      out += c;
      ++at;
    } else if (c == '{') {
      const std::size_t end = format.find('}', at);
      if (end == std::string_view::npos) run.fail("a format has `{{` without `}}`");
      const std::string_view field = format.substr(at + 1, end - at - 1);
      const bool number = field.find_first_not_of("0123456789") == std::string_view::npos;
      if (!number && field.find_first_of(".[!:{") != std::string_view::npos)
        run.fail("the format {{{}}} is not supported; only names and numbers are", field);
      if (field.size() > 4 && number) run.fail("a format has no value {}", field);
      const std::size_t index = !number         ? args.positional.size()
                                : field.empty() ? automatic++
                                                : static_cast<std::size_t>(std::stoi(std::string(field)));
      const Value* value = number && index >= args.positional.size() ? nullptr : args.find(index, field);
      if (!value) run.fail("a format has no value '{}'", field);
      out += str(run, *value);
      at = end;
    } else if (c == '}') {
      run.fail("a format has `}}` without `{{`");
    } else {
      out += c;
    }
    run.bytes(1);
  }
  return out;
}

}  // namespace hpcdl::io::jinja
