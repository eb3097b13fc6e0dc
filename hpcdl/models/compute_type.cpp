#include "hpcdl/models/compute_type.h"

#include "hpcdl/ops/cast/cast.h"

namespace hpcdl::models {

Tensor converted(const Tensor& t, const ComputeType& to, std::vector<Buffer>& own) {
  if (to.dtype == DType::none || t.dtype() == to.dtype) return t;
  const Spec spec{t.shape(), to.dtype};
  own.emplace_back(spec.bytes());
  const Tensor copy(own.back().data(), spec);
  Stream s(*to.pool);
  Cast::forward(s, copy, t, {.to = to.dtype});
  return copy;
}

}  // namespace hpcdl::models
