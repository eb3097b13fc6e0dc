#include "hpcdl/models/low_rank.h"

#include "hpcdl/quant/factors.h"

namespace hpcdl::models {

LowRank nearest_of_rank(Pool& pool, const View& d, std::int64_t r) {
  const quant::WeighedMatrix w{.values = d.ptr<float>(), .rows = d[0], .columns = d[1], .stride = d[1]};
  auto factors = quant::factorise(pool, w, {.method = nn::Method::svd, .rank = r});
  LowRank result{.left = OwnedTensor({{r, d[0]}, DType::f32}), .right = std::move(factors.input)};
  for (std::int64_t i = 0; i < d[0]; ++i)
    for (std::int64_t t = 0; t < r; ++t)
      result.left.tensor.ptr<float>()[t * d[0] + i] = factors.output.tensor.ptr<float>()[i * r + t];
  return result;
}

}  // namespace hpcdl::models
