#pragma once
// How the library throws its exceptions (error.h).

#include <fmt/core.h>

#include <string>
#include <string_view>

#include "hpcdl/error.h"

namespace hpcdl {

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
