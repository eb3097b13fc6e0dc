#pragma once
// Reference results for candidates: some elements of a product, each summed in double by one warp of plain code.

#include <cstdint>
#include <string>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/ops/int4_linear/int4_linear.h"
#include "hpcdl/stream.h"

namespace hpcdl::cuda {
struct Gemm;
}

namespace hpcdl::lab::tune {

/// The sampled elements of a matrix (rows, cols), or of `batch` matrices.
struct Sample {
  std::int64_t batch = 0, row = 0, col = 0;
};
/// Corners, edges and random positions; all elements of a small matrix.
std::vector<Sample> samples_of(std::int64_t batch, std::int64_t rows, std::int64_t cols);

/// Per sample: the exact value, and the sum of the magnitudes of its terms.
struct Wanted {
  std::vector<double> value, size;
};
/// Describes elements of `got` that are not within allowed_error() of `want`; empty if there are none. `rounding`: the
/// relative error of each product of a sum, if operands are rounded.
std::string difference(const std::vector<Sample>& at, const Wanted& want, const std::vector<double>& got, DType stored,
                       std::int64_t terms, double rounding = 0);

/// Where elements lie.
struct Elements {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t ld = 0, batch_stride = 0;
};

/// In the order of candidates.
inline std::string type_name(DType d) { return d == DType::bf16 ? "bf16" : d == DType::f16 ? "f16" : "f32"; }

/// Numbers of about unit size; bytes with any value.
void fill_random(Stream& s, Tensor t, std::uint64_t seed);
std::vector<double> gather(Stream& s, const std::vector<Sample>& at, const Elements& from);
Wanted reference_gemm(Stream& s, const std::vector<Sample>& at, const cuda::Gemm& g);
/// What a way rounds: x to 8 bits as defined in int4_linear.h, nothing, or weights to bf16.
enum class Int4Reference : unsigned char { rounded_x, exact, rounded_weights };
Wanted reference_int4(Stream& s, const std::vector<Sample>& at, View x, const int4::Weight& w, Int4Reference how);

}  // namespace hpcdl::lab::tune
