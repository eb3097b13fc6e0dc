#include "hpcdl/infer/grammar/string_formats.h"

#include <fmt/format.h>

#include <functional>
#include <map>

namespace hpcdl::infer::grammar {
namespace {

const std::map<std::string, std::string, std::less<>>& patterns() {
  static const auto all = [] {
    const std::string month_31 = "(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])",
                      month_30 = "(0[469]|11)-(0[1-9]|[12][0-9]|30)", february = "02-(0[1-9]|1[0-9]|2[0-8])",
                      year = "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])",
                      leap_year =
                          "(([1-9][0-9]|0[1-9])(0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26]|0[48])00|"
                          "00(0[48]|[2468][048]|[13579][26]))";
    const std::string date = fmt::format("({}-({}|{}|{})|{}-02-29)", year, month_31, month_30, february, leap_year);
    const std::string time =
        R"(([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]))";
    const std::string octet = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
    return std::map<std::string, std::string, std::less<>>{
        {"date", "^" + date + "$"},
        {"time", "^" + time + "$"},
        {"date-time", "^" + date + "T" + time + "$"},
        {"uuid", "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"},
        {"ipv4", "^" + fmt::format("({0}\\.){{3}}{0}", octet) + "$"},
    };
  }();
  return all;
}

}  // namespace

const std::string* pattern_of_format(std::string_view format) {
  const auto it = patterns().find(format);
  return it == patterns().end() ? nullptr : &it->second;
}

std::string format_names() {
  std::string names;
  for (const auto& [name, pattern] : patterns()) names += (names.empty() ? "" : ", ") + name;
  return names;
}

}  // namespace hpcdl::infer::grammar
