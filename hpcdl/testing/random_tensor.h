#pragma once

#include <cstdint>

#include "hpcdl/buffer.h"
#include "hpcdl/rng.h"

namespace hpcdl::testing {

/// Normal values, rounded to the type of `spec`: with one seed, tensors of two types are rounded copies of each other.
inline OwnedTensor random_tensor(const Spec& spec, std::uint64_t seed) {
  OwnedTensor t(spec);
  visit_dtype(spec.dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < spec.size(); ++i)
      t.tensor.ptr<T>()[i] = T(static_cast<float>(Rng{seed, 0}.normal(static_cast<std::uint64_t>(i))));
  });
  return t;
}

}  // namespace hpcdl::testing
