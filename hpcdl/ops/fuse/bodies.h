#pragma once
// Bodies for for_each(): gradients of element-wise ops that a chain cannot express because they have two outputs or
// read an operand twice. For either device.

#include "hpcdl/ops/fuse/activations.h"
#include "hpcdl/ops/fuse/operand.h"

namespace hpcdl::fuse {

/// dx = dy F'(x).
template <class F> struct MapBackward {
  Out dx;
  In x, dy;
  template <class At> HPCDL_HOST_DEVICE void operator()(const At& at) const {
    at.store(dx, at.load(dy) * F::slope(at.load(x)));
  }
};

/// y = x, to every requested gradient.
struct Fork {
  Out first, second;
  In x;
  template <class At> HPCDL_HOST_DEVICE void operator()(const At& at) const {
    const auto v = at.load(x);
    if (first) at.store(first, v);
    if (second) at.store(second, v);
  }
};

/// Gradients of y = F(gate) * up.
template <class F> struct GatedBackward {
  Out dgate, dup;
  In gate, up, dy;
  template <class At> HPCDL_HOST_DEVICE void operator()(const At& at) const {
    const auto g = at.load(gate), d = at.load(dy);
    if (dgate) at.store(dgate, d * at.load(up) * F::slope(g));
    if (dup) at.store(dup, d * F::value(g));
  }
};

}  // namespace hpcdl::fuse
