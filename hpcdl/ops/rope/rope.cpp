#include "hpcdl/ops/rope/rope.h"

#include <cmath>

namespace hpcdl {

Spec Rope::infer(const Spec& x, const Spec& table, const Spec& positions, const Args& a) {
  require_float(name, x);
  const auto d = head_dim(x, a);
  require(x.shape.rank() == 3 || x.shape.rank() == 4, name, "input must be (B, T, H*D) or (B, T, H, D), got {}",
          to_string(x));
  require(d > 0 && d % 2 == 0 && (x.shape.rank() == 3 ? x[-1] % d == 0 : x[-1] == d), name,
          "head_dim must be even and divide the last dim of {}, got {}", to_string(x), d);
  const auto least = positions ? 1 : x[1];
  require(table.dtype == DType::f32 && table.shape.rank() == 2 && table[-1] == d && table[0] >= least, name,
          "the table must be (P, {}) F32 with P >= {} positions, got {}", d, least, to_string(table));
  if (positions) require_positions_of(name, positions, x[0] * x[1]);
  return x;
}

void require_positions(const View& table, const View& positions) {
  for (std::int64_t i = 0; i < positions.size(); ++i) {
    const auto p = positions.ptr<std::int32_t>()[i];
    require(p >= 0 && p < table[0], Rope::name, "the table holds {} positions; token {} needs {}", table[0], i, p);
  }
}

void rope_rows(const Tensor& table, std::int64_t begin, std::int64_t end, double theta, const RopeScaling& scaling) {
  require(table.dtype() == DType::f32 && table.rank() == 2 && table.is_contiguous() && table[1] % 2 == 0, "rope_table",
          "expected a contiguous (P, D) F32 tensor with even D, got {}", to_string(table.spec()));
  require(begin >= 0 && begin <= end && end <= table[0], "rope_table",
          "rows {} .. {} are outside the {} rows of the table", begin, end, table[0]);
  const auto d = table[1];
  for (std::int64_t i = 0; i < d / 2; ++i) {
    const double frequency = scaling(std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(d)));
    for (std::int64_t p = begin; p < end; ++p) {
      table.ptr<float>()[p * d + i] = static_cast<float>(std::cos(static_cast<double>(p) * frequency));
      table.ptr<float>()[p * d + d / 2 + i] = static_cast<float>(std::sin(static_cast<double>(p) * frequency));
    }
  }
}

void rope_table(const Tensor& table, double theta, const RopeScaling& scaling) {
  rope_rows(table, 0, table[0], theta, scaling);
}

}  // namespace hpcdl
