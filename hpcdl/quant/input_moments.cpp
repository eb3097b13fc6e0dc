#include "hpcdl/quant/input_moments.h"

#include <utility>

#include "hpcdl/core/convert.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/ops/matmul/matmul.h"

namespace hpcdl::quant {

InputMoments::InputMoments(std::int64_t k) : k_(k), sums_(static_cast<std::size_t>(k * k)) {}

void InputMoments::add(Stream& s, const View& x) {
  require(x.rank() >= 1 && x[-1] == k_ && x.rows_are_uniform(), "quant", "expected dense rows of {} inputs, got {}", k_,
          to_string(x.spec()));
  if (x.size() == 0) return;
  const OwnedTensor rows({{x.rows(), k_}, DType::f32}), products({{k_, k_}, DType::f32});
  for (std::int64_t r = 0; r < rows.tensor[0]; ++r) {
    const auto* from = x.ptr<std::byte>() + r * x.row_stride() * dtype_bytes(x.dtype());
    convert_elements(Tensor(rows.tensor.ptr<float>() + r * k_, {{k_}, DType::f32}), View(from, {{k_}, x.dtype()}));
  }
  Matmul::forward(s, products.tensor, rows.tensor, rows.tensor, {.transpose_a = true});
  const auto* of_these = products.tensor.ptr<float>();
  for (std::size_t i = 0; i < sums_.size(); ++i) sums_[i] += static_cast<double>(of_these[i]);
  rows_ += x.rows();
}

double InputMoments::at(std::int64_t i, std::int64_t j) const {
  return rows_ > 0 ? sums_[static_cast<std::size_t>(i * k_ + j)] / static_cast<double>(rows_) : 0;
}

InputMoments InputMoments::rotated(void (*turn)(double* row, std::int64_t k)) const {
  InputMoments result(*this);
  const auto at = [&](std::int64_t i, std::int64_t j) -> double& {
    return result.sums_[static_cast<std::size_t>(i * k_ + j)];
  };
  for (int side = 0; side < 2; ++side) {
    for (std::int64_t i = 0; i < k_; ++i) turn(&at(i, 0), k_);
    for (std::int64_t i = 0; i < k_; ++i)
      for (std::int64_t j = 0; j < i; ++j) std::swap(at(i, j), at(j, i));
  }
  return result;
}

std::vector<float> InputMoments::squares() const {
  std::vector<float> all(static_cast<std::size_t>(k_));
  for (std::int64_t i = 0; i < k_; ++i) all[static_cast<std::size_t>(i)] = static_cast<float>(at(i, i));
  return all;
}

}  // namespace hpcdl::quant
