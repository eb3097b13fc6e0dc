#pragma once
// The operands of the CPU kernels: a tile of weights, and rows of x as the kernels read them. Kernel files only.
//
// Rows of x are processed in blocks of C rows (the last block has the rest), each block interleaved, so that the inputs
// for one register of weights are adjacent:
//   8 bits   values[block][k / run][C][run]   steps[block][group][C]   sums[block][group][C] = -8 * sum of the values
//   exact    values[block][k][C]              steps[block][group][C] = sum of the inputs, in float
// Vector kernels take blocks of 8 rows in runs of 4, tile registers (int4_amx.h) blocks of 16 in runs of a group.

#include <cstring>

#include "hpcdl/ops/int4_linear/int4_linear.h"
#include "hpcdl/ops/int4_linear/int4_vec.h"
#include "hpcdl/ops/rows.h"

namespace hpcdl::cpu {
namespace {

/// One tile of weights: `rows` <= 16 rows.
struct Tile {
  const std::uint8_t* packed;
  const bf16* scale;
  const bf16* offset;  // null when symmetric
  int rows;
};

inline Tile tile_of(const int4::Weight& w, std::int64_t index) {
  const std::int64_t row = index * int4::kTileRows, at = int4::scale_at(row, w.groups());
  return {w.packed.ptr<std::uint8_t>() + int4::packed_at(row, w.k()), w.scale.ptr<bf16>() + at,
          w.offset ? w.offset.ptr<bf16>() + at : nullptr, static_cast<int>(int4::tile_rows(row, w.n()))};
}

/// One block of inputs.
struct Block {
  const std::byte* values;
  const float* steps;
  const std::int32_t* sums;
};

inline Block block_of(const int4::Scratch& s, std::int64_t first, std::int64_t k, std::int64_t groups,
                      std::int64_t value_bytes) {
  return {static_cast<const std::byte*>(s.values.data()) + first * k * value_bytes,
          s.steps.ptr<float>() + first * groups, s.sums.ptr<std::int32_t>() + first * groups};
}

/// `c`: rows of the block.
template <class Isa, class T>
void quantize_row(std::int8_t* values, float* steps, std::int32_t* sums, const T* x, std::int64_t groups,
                  std::int64_t group, std::int64_t c, std::int64_t run) {
  using V = simd::Vec<Isa>;
  for (std::int64_t g = 0; g < groups; ++g, x += group) {
    V top(0.0f), poison(0.0f);
    for (std::int64_t i = 0; i < group; i += V::N) {
      const V v = V::load(x + i);
      top = max(abs(v), top);
      poison = fma(v, V(0.0f), poison);  // NaN if an input is NaN or infinite, which max() does not propagate
    }
    const float most = reduce_max(top);
    // Below 2^-100 the reciprocal of the step would overflow; such inputs are treated as 0.
    const float per_step = most > 0x1p-100f ? 127.0f / most : 0.0f;
    steps[g * c] = (per_step > 0 ? most / 127.0f : 0.0f) + reduce_add(poison);
    std::int8_t q[128];
    V sum(0.0f);  // of at most 128 integers below 128: exact
    for (std::int64_t i = 0; i < group; i += V::N) {
      const V rounded = round(min(max(V::load(x + i) * V(per_step), V(-127.0f)), V(127.0f)));
      Int4Vec<Isa>::store_i8(rounded, q + i);
      sum = sum + rounded;
    }
    sums[g * c] = -8 * static_cast<std::int32_t>(reduce_add(sum));
    if (c == 1 || run == group) std::memcpy(values + g * group * c, q, static_cast<std::size_t>(group));
    else
      for (std::int64_t i = 0; i < group; i += 4) std::memcpy(values + (g * group + i) * c, q + i, 4);
  }
}

template <class T>
void widen_row(float* values, float* sums, const T* x, std::int64_t groups, std::int64_t group, std::int64_t c) {
  for (std::int64_t g = 0; g < groups; ++g) {
    float sum = 0;
    for (std::int64_t i = g * group; i < (g + 1) * group; ++i) {
      values[i * c] = static_cast<float>(x[i]);
      sum += values[i * c];
    }
    sums[g * c] = sum;
  }
}

/// Writes the scratch in blocks of `batch` rows, of 8-bit values in runs of `run`: 4, or a group.
template <class Isa>
void prepare(Pool& pool, const int4::Scratch& s, const View& x, const int4::Weight& w, bool exact, std::int64_t batch,
             std::int64_t run) {
  const std::int64_t rows = x.rows(), k = w.k(), groups = w.groups();
  visit_dtype(x.dtype(), [&]<class T>() {
    for_rows(pool, rows, k, [&](std::int64_t begin, std::int64_t end) {
      for (auto r = begin; r < end; ++r) {
        const std::int64_t first = r / batch * batch, c = rows - first < batch ? rows - first : batch, i = r - first;
        const T* row = x.ptr<T>() + r * x.row_stride();
        float* steps = s.steps.ptr<float>() + first * groups + i;
        if (exact) widen_row(s.values.ptr<float>() + first * k + i, steps, row, groups, w.group(), c);
        else
          quantize_row<Isa>(s.values.ptr<std::int8_t>() + first * k + i * run, steps,
                            s.sums.ptr<std::int32_t>() + first * groups + i, row, groups, w.group(), c, run);
      }
    });
  });
}

}  // namespace
}  // namespace hpcdl::cpu
