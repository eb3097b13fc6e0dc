#include "hpcdl/graph.h"

#include "hpcdl/core/error.h"

namespace hpcdl {

void Bindings::bind(const std::string& name, const Tensor& memory) {
  const auto [it, added] = memory_.emplace(name, memory);
  require(added || it->second.data() == memory.data(), "graph", "\"{}\" already has other memory in this program",
          name);
}

void Bindings::bind(const std::string& name, const void* object) {
  const auto [it, added] = objects_.emplace(name, object);
  require(added || it->second == object, "graph", "\"{}\" already names another object in this program", name);
}

Tensor Bindings::memory(std::string_view name) const {
  const auto it = memory_.find(name);
  return it == memory_.end() ? Tensor() : it->second;
}

const void* Bindings::object(std::string_view name) const {
  const auto it = objects_.find(name);
  return it == objects_.end() ? nullptr : it->second;
}

}  // namespace hpcdl
