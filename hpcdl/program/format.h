#pragma once
// fmt prints the names of ops.

#include <fmt/format.h>

#include <string_view>

#include "hpcdl/op_info.h"

template <> struct fmt::formatter<hpcdl::OpName> : fmt::formatter<std::string_view> {
  auto format(hpcdl::OpName name, fmt::format_context& to) const {
    return fmt::formatter<std::string_view>::format(name.view(), to);
  }
};
