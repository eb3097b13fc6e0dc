#include "hpcdl/ops/rope/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "hpcdl/core/error.h"

namespace hpcdl {

Spec Rope::infer(const Spec& x, const Spec& table, const Spec& positions, const Args& a) {
  require_float(name, x);
  const auto d = head_dim(x, a);
  require(x.shape.rank() == 3 || x.shape.rank() == 4, name, "input must be (B, T, H*D) or (B, T, H, D), got {}",
          to_string(x));
  require(d > 0 && (x.shape.rank() == 3 ? x[-1] % d == 0 : x[-1] == d), name,
          "head_dim must divide the last dim of {}, got {}", to_string(x), d);
  const auto least = positions ? 1 : x[1];
  require(table.dtype == DType::f32 && table.shape.rank() == 2 && table[-1] > 0 && table[-1] % 2 == 0 &&
              table[-1] <= d && table[0] >= least,
          name, "the table must be (P, R) F32 with even R <= {} and P >= {} positions, got {}", d, least,
          to_string(table));
  if (positions) require_positions_of(name, positions, x[0] * x[1]);
  return x;
}

void require_positions(const View& table, const View& positions) {
  for (std::int64_t i = 0; i < positions.size(); ++i) {
    const auto p = positions.ptr<std::int32_t>()[i];
    require(p >= 0 && p < table[0], Rope::name, "the table holds {} positions; token {} needs {}", table[0], i, p);
  }
}

std::vector<double> RopeScaling::frequencies(std::int64_t dims, double theta, bool long_texts) const {
  const auto d = static_cast<double>(dims);
  std::vector<double> list;
  for (std::int64_t i = 0; i < dims / 2; ++i) list.push_back(std::pow(theta, -2.0 * static_cast<double>(i) / d));
  switch (kind) {
    case Kind::none:
    case Kind::dynamic: return list;
    case Kind::linear:
      for (double& x : list) x /= factor;
      return list;
    case Kind::llama3:
      for (double& x : list) {
        const double turns = original_context * x / (2 * std::numbers::pi);
        if (turns > high_freq_factor) continue;
        const double kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
        x = turns < low_freq_factor ? x / factor : std::lerp(x / factor, x, kept);
      }
      return list;
    case Kind::yarn: {
      const auto index_of = [&](double turns) {
        return d * std::log(original_context / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
      };
      double first = index_of(fast_turns), last = index_of(slow_turns);
      if (whole_indices) first = std::floor(first), last = std::ceil(last);
      first = std::max(first, 0.0), last = std::min(last, d - 1);
      if (first == last) last += 0.001;
      for (std::size_t i = 0; i < list.size(); ++i) {
        const double slow = std::clamp((static_cast<double>(i) - first) / (last - first), 0.0, 1.0);
        list[i] = std::lerp(list[i], list[i] / factor, slow);
      }
      return list;
    }
    case Kind::longrope: {
      const auto& divisors = long_texts ? long_factors : short_factors;
      require(divisors.size() == list.size(), "rope", "{} angles need as many factors, got {}", list.size(),
              divisors.size());
      for (std::size_t i = 0; i < list.size(); ++i) list[i] /= divisors[i];
      return list;
    }
  }
  fail("rope", "there is no scaling {}", static_cast<int>(kind));
}

void rope_rows(const Tensor& table, std::int64_t begin, std::int64_t end, double theta, const RopeScaling& scaling,
               bool long_texts) {
  require(table.dtype() == DType::f32 && table.rank() == 2 && table.is_contiguous() && table[1] % 2 == 0, "rope_table",
          "expected a contiguous (P, D) F32 tensor with even D, got {}", to_string(table.spec()));
  require(begin >= 0 && begin <= end && end <= table[0], "rope_table",
          "rows {} .. {} are outside the {} rows of the table", begin, end, table[0]);
  const auto d = table[1];
  const auto frequencies = scaling.frequencies(d, theta, long_texts);
  for (std::int64_t i = 0; i < d / 2; ++i)
    for (std::int64_t p = begin; p < end; ++p) {
      const double angle = static_cast<double>(p) * frequencies[static_cast<std::size_t>(i)];
      table.ptr<float>()[p * d + i] = static_cast<float>(scaling.magnitude * std::cos(angle));
      table.ptr<float>()[p * d + d / 2 + i] = static_cast<float>(scaling.magnitude * std::sin(angle));
    }
}

void rope_table(const Tensor& table, double theta, const RopeScaling& scaling) {
  rope_rows(table, 0, table[0], theta, scaling);
}

}  // namespace hpcdl
