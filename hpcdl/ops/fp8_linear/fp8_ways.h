#pragma once
// The ways in which a GPU can multiply 8-bit floats. All of them give results within the same bounds, with different
// bits; each is reproducible bit for bit.

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "hpcdl/ops/fp8_linear/fp8_linear.h"

namespace hpcdl::cuda {

/// The names of all ways, by id.
std::span<const std::string_view> fp8_way_names();
bool fp8_fits(Stream& s, const Fp8Product& p, int way);
/// The way that fp8_linear() uses: the one that the stream's table says, else the built-in one.
int fp8_way(Stream& s, const Fp8Product& p);
/// Like fp8_linear(), in the given way. Without `promoted`, the tile kernels leave their sums to the tensor cores until
/// the end: for tests of the error.
void fp8_linear_by(int way, Stream& s, const Fp8Product& p, bool promoted = true);

/// The properties of a product that determine its way: those of its key, under "fp8_linear" (core/ways.h).
std::array<std::int64_t, 6> fields_of(const Fp8Product& p);
/// For people: "4096x4096x4096 F8_E4M3 +bias".
std::string words_of(const Fp8Product& p);

}  // namespace hpcdl::cuda
