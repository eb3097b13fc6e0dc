#pragma once

namespace hpcdl {

/// What a record must do at least: floating-point operations, and bytes that have to cross main memory once.
/// Speed of light = max(flops / peak flops, bytes / bandwidth).
struct Cost {
  double flops = 0;
  double bytes = 0;
  Cost& operator+=(const Cost& o) {
    flops += o.flops;
    bytes += o.bytes;
    return *this;
  }
};

}  // namespace hpcdl
