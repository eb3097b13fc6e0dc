#pragma once

#include <cstdint>

#include "hpcdl/io/config_visitor.h"

namespace hpcdl {

/// Where the scales of 8-bit floats come from.
enum class Fp8Scales : std::uint8_t {
  delayed,  // of a tensor: its largest magnitude in the last steps
  current,  // of a tensor: its largest magnitude
  row,      // of each row: its largest magnitude
};

namespace io {
template <> struct EnumNames<Fp8Scales> {
  static constexpr std::pair<Fp8Scales, std::string_view> values[] = {
      {Fp8Scales::delayed, "delayed"}, {Fp8Scales::current, "current"}, {Fp8Scales::row, "row"}};
};
}  // namespace io

namespace models {

/// Which layers of a decoder multiply in 8-bit floats, or in an emulation of MXFP4: those of its blocks, but for the first
/// and the last ones, routers and experts. Embeddings and the head never do.
struct Fp8Options {
  bool on = false;
  bool mx4 = false;    // with `on`: MXFP4 (ops/mx4_layer), on a CPU, without scales of their own
  bool plain = false;  // of MXFP4: rounded to nearest, for comparisons
  Fp8Scales scales = Fp8Scales::delayed;
  std::int64_t first = 1, last = 1;  // blocks that do not
};

}  // namespace models
}  // namespace hpcdl
