#pragma once
// Arguments that take any object, so that our own message says what does not fit: nanobind would say that no overload
// takes it.

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace hpcdl::python {

/// A parameter of the type nb::handle, which may be None as well.
inline auto anything(const char* name) { return nanobind::arg(name).none(); }

/// "list", "None": what `object` is, for messages.
std::string kind_of(nanobind::handle object);

// Each throws TypeError in words.
float number(std::string_view op, std::string_view name, nanobind::handle argument);
double exact_number(std::string_view op, std::string_view name, nanobind::handle argument);
std::int64_t integer(std::string_view op, std::string_view name, nanobind::handle argument);
bool flag(std::string_view op, std::string_view name, nanobind::handle argument);

}  // namespace hpcdl::python
