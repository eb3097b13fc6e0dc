#pragma once
// The exceptions. `Error` is for what a user can cause or fix: it says what was expected, what was found and
// what to do, in the form "[area] ...". Programmer mistakes assert. A library never exits the process.

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace hpcdl {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Errors on the command line or in a config file: exit code 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// Process exit codes of the command-line program.
namespace exit_code {
inline constexpr int kDone = 0, kUsage = 2, kInternal = 70, kPeerLost = 71, kRequeue = 75;
}

namespace detail {
[[noreturn]] void fail(std::string_view area, fmt::string_view format, fmt::format_args args);
[[noreturn]] void fail_usage(std::string_view area, fmt::string_view format, fmt::format_args args);
}  // namespace detail

/// Throws Error("[area] message").
template <class... A> [[noreturn]] void fail(std::string_view area, fmt::format_string<A...> f, A&&... args) {
  detail::fail(area, f, fmt::make_format_args(args...));
}

template <class... A> [[noreturn]] void fail_usage(std::string_view area, fmt::format_string<A...> f, A&&... args) {
  detail::fail_usage(area, f, fmt::make_format_args(args...));
}

/// Throws unless `ok`. The message is formatted only on failure.
template <class... A> void require(bool ok, std::string_view area, fmt::format_string<A...> f, A&&... args) {
  if (!ok) [[unlikely]]
    fail(area, f, std::forward<A>(args)...);
}

}  // namespace hpcdl
