#pragma once
// What the names of a program stand for in one process.

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "hpcdl/core/tensor.h"
#include "hpcdl/program/program.h"

namespace hpcdl {

class Bindings {
 public:
  /// A name stands for one thing: Error where it is known as another one.
  void bind(const std::string& name, const Tensor& memory);
  void bind(const std::string& name, const void* object);

  /// Absent where nothing of that name is bound.
  Tensor memory(std::string_view name) const;
  const void* object(std::string_view name) const;

 private:
  std::map<std::string, Tensor, std::less<>> memory_;        // of state slots
  std::map<std::string, const void*, std::less<>> objects_;  // of Bounds
};

/// A program, and what its recorder was handed under the names in it.
struct Recording {
  Program program;
  Bindings bindings;
};

}  // namespace hpcdl
