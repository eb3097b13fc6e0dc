#pragma once
// Copies between tensors whose rows are at different distances.

#include "hpcdl/stream.h"
#include "hpcdl/tensor.h"

namespace hpcdl {

/// to = from, of equal numbers of rows and columns at any uniform distance of rows, on either device.
void copy_rows(Stream& s, const Tensor& to, const View& from);
/// The same, or to += from, as `to` says.
void write_rows(Stream& s, const Grad& to, const View& from);

}  // namespace hpcdl
