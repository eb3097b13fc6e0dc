#pragma once

#include <map>
#include <memory>
#include <string>

#include "hpcdl/instance.h"

namespace hpcdl::models {

/// Other memory for some state slots of a pass, by name: of the same shape and type.
using Substitutes = std::map<std::string, OwnedTensor, std::less<>>;

/// The pass on a CPU, with the substitutes in place of the memory that it names. They must outlive the instance.
Instance with_substitutes(const Pass& pass, const Substitutes& substitutes, std::shared_ptr<Buffer> arena = nullptr);

/// The values (out, in) of a matrix, in f32, as memory of `spec`, which may be (in, out) if `transposed`.
OwnedTensor as_stored(const View& values, const Spec& spec, bool transposed);

}  // namespace hpcdl::models
