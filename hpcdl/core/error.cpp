#include "hpcdl/core/error.h"

namespace hpcdl::detail {
namespace {

std::string message(std::string_view area, fmt::string_view format, fmt::format_args args) {
  return fmt::format("[{}] {}", area, fmt::vformat(format, args));
}

}  // namespace

void fail(std::string_view area, fmt::string_view format, fmt::format_args args) {
  throw Error(message(area, format, args));
}
void fail_usage(std::string_view area, fmt::string_view format, fmt::format_args args) {
  throw UsageError(message(area, format, args));
}

}  // namespace hpcdl::detail
