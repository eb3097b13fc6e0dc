#pragma once

#include "hpcdl/ops/gelu/gelu.h"
#include "python/src/words.h"

namespace hpcdl::python {

/// PyTorch's names: "none" is the error function, "tanh" the approximation.
inline Gelu::Form gelu_form(std::string_view op, nanobind::handle approximate) {
  return choose(op, "approximate", approximate, {"none", "tanh"}) == 0 ? Gelu::Form::erf : Gelu::Form::tanh;
}

}  // namespace hpcdl::python
