#include "python/src/arguments.h"

#include "python/src/type_error.h"

namespace hpcdl::python {
namespace {

namespace nb = nanobind;

template <class T> T cast(std::string_view op, std::string_view name, nb::handle argument, std::string_view expected) {
  T value{};
  if (!nb::try_cast(argument, value)) [[unlikely]]
    require_type(false, op, "{} must be {}, got {}", name, expected, kind_of(argument));
  return value;
}

}  // namespace

std::string kind_of(nb::handle object) {
  return object.is_none() ? "None" : std::string(nb::type_name(object.type()).c_str());
}

float number(std::string_view op, std::string_view name, nb::handle argument) {
  return cast<float>(op, name, argument, "a number");
}
double exact_number(std::string_view op, std::string_view name, nb::handle argument) {
  return cast<double>(op, name, argument, "a number");
}
std::int64_t integer(std::string_view op, std::string_view name, nb::handle argument) {
  return cast<std::int64_t>(op, name, argument, "an integer of at most 64 bits");
}
bool flag(std::string_view op, std::string_view name, nb::handle argument) {
  return cast<bool>(op, name, argument, "True or False");
}

}  // namespace hpcdl::python
