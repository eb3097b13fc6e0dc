#pragma once

#include "hpcdl/core/error.h"

namespace hpcdl::python {

/// Becomes a TypeError in Python: the wrong kind of object or element type. Every other Error becomes a ValueError.
class TypeError : public Error {
 public:
  using Error::Error;
};

template <class... A> void require_type(bool ok, std::string_view area, fmt::format_string<A...> f, A&&... args) {
  if (!ok) [[unlikely]]
    throw TypeError(fmt::format("[{}] {}", area, fmt::format(f, std::forward<A>(args)...)));
}

}  // namespace hpcdl::python
