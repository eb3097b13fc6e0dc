#pragma once

#include <nanobind/nanobind.h>

#include <initializer_list>
#include <string>
#include <string_view>

#include "python/src/arguments.h"
#include "python/src/type_error.h"

namespace hpcdl::python {

/// Index of the word `argument` in `words`; throws an error that names them all if it is none of them.
inline int choose(std::string_view op, std::string_view name, nanobind::handle argument,
                  std::initializer_list<std::string_view> words) {
  Py_ssize_t length = 0;
  const char* text = PyUnicode_Check(argument.ptr()) ? PyUnicode_AsUTF8AndSize(argument.ptr(), &length) : nullptr;
  PyErr_Clear();
  int i = 0;
  for (const auto word : words) {
    if (text && std::string_view(text, static_cast<std::size_t>(length)) == word) return i;
    ++i;
  }
  std::string all;
  for (const auto word : words) all += fmt::format("{}\"{}\"", all.empty() ? "" : ", ", word);
  require_type(text != nullptr, op, "{} must be one of {}, got {}", name, all, kind_of(argument));
  fail(op, "{} must be one of {}, got \"{}\"", name, all, text);
}

}  // namespace hpcdl::python
