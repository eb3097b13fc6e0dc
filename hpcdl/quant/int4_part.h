#pragma once

#include <string_view>

#include "hpcdl/quant/int4.h"

namespace hpcdl::quant {

/// Rows and columns of a matrix, with the same values, as a matrix of their own. Throws Error that names `name` unless
/// the columns are whole groups of the matrix.
Int4Matrix take_int4(const int4::Weight& w, const nn::MatrixPart& part, std::string_view name = "weight");

}  // namespace hpcdl::quant
