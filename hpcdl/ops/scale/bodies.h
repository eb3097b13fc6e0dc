#pragma once
// The element-wise work of scale(), for either device.

#include "hpcdl/ops/fuse/math.h"
#include "hpcdl/ops/fuse/operand.h"
#include "hpcdl/ops/scale/scale.h"

namespace hpcdl::fuse {

struct Scaled {
  Out y;
  In x;
  hpcdl::Scale::Args a;
  template <class At> HPCDL_HOST_DEVICE void operator()(const At& at) const {
    auto v = at.load(x);
    using V = decltype(v);
    v = v * V(a.factor);
    at.store(y, a.cap > 0 ? V(a.cap) * tanh(v * V(1 / a.cap)) : v);
  }
};

/// The derivative of c tanh(x / c) is 1 - (y / c)^2.
struct ScaledBackward {
  Out dx;
  In y, dy;
  hpcdl::Scale::Args a;
  template <class At> HPCDL_HOST_DEVICE void operator()(const At& at) const {
    auto d = at.load(dy);
    using V = decltype(d);
    d = d * V(a.factor);
    if (a.cap > 0) {
      const V part = at.load(y) * V(1 / a.cap);
      d = d * (V(1.0f) - part * part);
    }
    at.store(dx, d);
  }
};

}  // namespace hpcdl::fuse
