#pragma once
// How elements of several ranks are reduced to one.

#include <cstddef>
#include <cstdint>
#include <span>

#include "hpcdl/dtype.h"
#include "hpcdl/group.h"

namespace hpcdl::comm::algo {

/// The dtype, the operation and the number of ranks (avg divides by it).
struct Reduction {
  DType dtype = DType::f32;
  Reduce op = Reduce::sum;
  int ranks = 1;

  std::int64_t bytes(std::int64_t elements) const { return elements * dtype_bytes(dtype); }
};

/// Throws Error if the dtype cannot be reduced, or has no average.
void check(const Reduction& r);

/// Position of a rank's values in the whole sum. last: nothing is added after this, so an average is divided here,
/// once.
enum class Part : std::uint8_t { inner, last };

/// out[i] = a[i] op b[i], in this order. `out` may be `a` or `b`. 16-bit floats are added in f32 and rounded once;
/// integers wrap. NaN is the maximum of NaN and anything.
void combine(const Reduction& r, Part part, std::byte* out, const std::byte* a, const std::byte* b, std::int64_t n);

/// The most rows that combine_all() takes.
inline constexpr int kMostTogether = 64;

/// Order in which floats are processed; the bits are the same. down: from the last to the first. stream: up, and the
/// outputs, which are not read soon, go past the caches.
enum class Sweep : std::uint8_t { up, down, stream };

/// Every out[k][i] = ((in[0][i] op in[1][i]) op in[2][i]) ..., 16-bit floats in f32 throughout. An output may be an
/// input.
void combine_all(const Reduction& r, std::span<std::byte* const> out, std::span<const std::byte* const> in,
                 std::int64_t n, Sweep sweep = Sweep::up);

}  // namespace hpcdl::comm::algo
