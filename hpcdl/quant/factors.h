#pragma once
// The factors of a compressed matrix (nn/structured.h has their shapes) from the matrix.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/nn/structure.h"
#include "hpcdl/quant/leading.h"

namespace hpcdl::quant {

struct Factors {
  OwnedTensor input, scale, output;  // `scale` for blast alone
};

/// Of a matrix (out, in) and a part of its size: the rank that the ratio pays for. `blocks`: of monarch and blast; none:
/// 4 if they divide both sides, else the nearest number of 2 to 16 that does. Throws Error that names the matrix for
/// blocks that do not divide both sides, and for a ratio that is too small for rank 1.
nn::Structure structure_for(nn::Method method, std::int64_t out, std::int64_t in, double ratio,
                            std::optional<std::int64_t> blocks, std::string_view name);

/// Factors in f32 of the given structure for W, with dense or strided rows.
///   svd:     those of the nearest matrix of this rank; with moments, nearest in the mean of |W x - W' x|^2.
///   monarch: those of the nearest matrix of this structure: each of its parts is the nearest of its rank.
///   blast:   alternating least squares for each of the factors, from those of the nearest matrix of this rank. The error
///            falls in each of a fixed number of turns.
/// The two factors of a rank have equal length, so that training changes both alike.
Factors factorise(Pool& pool, const WeighedMatrix& w, const nn::Structure& structure);

/// The matrix (out, in), f32, that factors of any float type stand for.
OwnedTensor expand(Pool& pool, const Factors& factors, const nn::Structure& structure);

}  // namespace hpcdl::quant
