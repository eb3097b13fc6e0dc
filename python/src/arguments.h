#pragma once
// Arguments that take any object, so that our own message says what is wrong: nanobind would only say that no overload
// accepts it.

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace hpcdl::python {

/// A parameter of the type nb::handle, which may be None as well.
inline auto anything(const char* name) { return nanobind::arg(name).none(); }

/// The type of `object` for messages: "list", "None".
std::string kind_of(nanobind::handle object);

// Each throws TypeError with what was expected and what was found.
float number(std::string_view op, std::string_view name, nanobind::handle argument);
double exact_number(std::string_view op, std::string_view name, nanobind::handle argument);
std::int64_t integer(std::string_view op, std::string_view name, nanobind::handle argument);
bool flag(std::string_view op, std::string_view name, nanobind::handle argument);

}  // namespace hpcdl::python
