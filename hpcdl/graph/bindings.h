#pragma once
// The memory and the objects to which the names of a program are bound in one process.

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "hpcdl/core/tensor.h"
#include "hpcdl/program/program.h"

namespace hpcdl {

class Bindings {
 public:
  /// A name is bound to one thing: throws Error if it is already bound to another.
  void bind(const std::string& name, const Tensor& memory);
  void bind(const std::string& name, const void* object);

  /// Absent if nothing is bound to that name.
  Tensor memory(std::string_view name) const;
  const void* object(std::string_view name) const;

 private:
  std::map<std::string, Tensor, std::less<>> memory_;        // of state slots
  std::map<std::string, const void*, std::less<>> objects_;  // of Bounds
};

/// A program, and what its recorder was given for the names in it.
struct Recording {
  Program program;
  Bindings bindings;
};

}  // namespace hpcdl
