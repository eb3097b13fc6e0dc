#pragma once
// Bodies for for_each(): the element-wise ops, forward and backward, for either device.

#include "hpcdl/ops/fuse/activations.h"
#include "hpcdl/ops/fuse/operand.h"

namespace hpcdl::fuse {

/// y = F(x).
template <class F> struct Map {
  Out y;
  In x;
  template <class At> HPCDL_HOST_DEVICE void operator()(const At& at) const { at.store(y, F::value(at.load(x))); }
};
/// dx = dy F'(x).
template <class F> struct MapBackward {
  Out dx;
  In x, dy;
  template <class At> HPCDL_HOST_DEVICE void operator()(const At& at) const {
    at.store(dx, at.load(dy) * F::slope(at.load(x)));
  }
};

/// y = F(x + b), b over the columns.
template <class F> struct BiasMap {
  Out y;
  In x, b;
  template <class At> HPCDL_HOST_DEVICE void operator()(const At& at) const {
    at.store(y, F::value(at.load(x) + at.load_columns(b)));
  }
};

/// y = a + b.
struct Sum {
  Out y;
  In a, b;
  template <class At> HPCDL_HOST_DEVICE void operator()(const At& at) const { at.store(y, at.load(a) + at.load(b)); }
};
/// y = x, to every wanted gradient.
struct Fork {
  Out first, second;
  In x;
  template <class At> HPCDL_HOST_DEVICE void operator()(const At& at) const {
    const auto v = at.load(x);
    if (first) at.store(first, v);
    if (second) at.store(second, v);
  }
};

/// y = F(gate) * up.
template <class F> struct Gated {
  Out y;
  In gate, up;
  template <class At> HPCDL_HOST_DEVICE void operator()(const At& at) const {
    at.store(y, F::value(at.load(gate)) * at.load(up));
  }
};
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
