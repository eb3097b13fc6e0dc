#include "hpcdl/models/substitutes.h"

#include "hpcdl/core/convert.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"

namespace hpcdl::models {

Instance with_substitutes(const Pass& pass, const Substitutes& substitutes, std::shared_ptr<Buffer> arena) {
  const Program& program = pass.planned->program;
  Bindings bindings;
  for (const auto& slot : program.slots) {
    if (slot.kind != SlotKind::state) continue;
    const auto found = substitutes.find(slot.name);
    bindings.bind(slot.name, found == substitutes.end() ? pass.bindings.memory(slot.name) : found->second.tensor);
  }
  for (const auto at : program.bounds) {
    const auto& bound = *reinterpret_cast<const Bound*>(program.args.data() + at);
    bindings.bind(std::string(bound.name), pass.bindings.object(bound.name));
  }
  return Instance(pass.planned, std::move(bindings), std::move(arena));
}

OwnedTensor as_stored(const View& values, const Spec& spec, bool transposed) {
  const auto n = values[0], k = values[1];
  require(values.dtype() == DType::f32 && spec.shape == (transposed ? Shape{k, n} : Shape{n, k}), "model",
          "values of {} do not fit {}", to_string(values.spec()), to_string(spec));
  OwnedTensor stored(spec);
  if (!transposed) {
    convert_elements(stored.tensor, values);
    return stored;
  }
  const OwnedTensor turned({spec.shape, DType::f32});
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < k; ++j) turned.tensor.ptr<float>()[j * n + i] = values.ptr<float>()[i * k + j];
  convert_elements(stored.tensor, turned.tensor);
  return stored;
}

}  // namespace hpcdl::models
