#pragma once
// Arguments that take any object, so that what does not fit is told in words of ours: nanobind itself says that no
// overload takes it.

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace hpcdl::python {

/// A parameter of the type nb::handle, which may be given None as well.
inline auto anything(const char* name) { return nanobind::arg(name).none(); }

/// "list", "None": what `object` is, for messages.
std::string kind_of(nanobind::handle object);

// Each throws TypeError in words.
float number(std::string_view op, std::string_view name, nanobind::handle given);
double exact_number(std::string_view op, std::string_view name, nanobind::handle given);
std::int64_t integer(std::string_view op, std::string_view name, nanobind::handle given);
bool flag(std::string_view op, std::string_view name, nanobind::handle given);

}  // namespace hpcdl::python
