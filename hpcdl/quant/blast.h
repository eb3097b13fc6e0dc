#pragma once

#include "hpcdl/quant/factors.h"

namespace hpcdl::quant {

/// Factors of the structure of blast, from those of a matrix of the same rank, (rank, in) and (out, rank).
Factors fit_blast(Pool& pool, const WeighedMatrix& w, const nn::Structure& structure, const Factors& low_rank);

}  // namespace hpcdl::quant
