#include "hpcdl/models/low_rank.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/rng.h"

namespace hpcdl::models {
namespace {

constexpr std::int64_t kMore = 8;  // directions beside those that are wanted
constexpr int kIterations = 4;
constexpr int kSweeps = 30;

double dot(const float* a, const float* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += double{a[i]} * double{b[i]};
  return sum;
}

/// Makes the rows of q orthonormal; a row that depends on those before it becomes zero. Twice, because once loses digits
/// where rows are nearly parallel.
void orthonormalise(const Tensor& q) {
  const auto n = q[1];
  auto* rows = q.ptr<float>();
  for (std::int64_t i = 0; i < q[0]; ++i) {
    float* mine = rows + i * n;
    const double before = std::sqrt(dot(mine, mine, n));
    for (int pass = 0; pass < 2; ++pass)
      for (std::int64_t j = 0; j < i; ++j) {
        const double along = dot(mine, rows + j * n, n);
        for (std::int64_t c = 0; c < n; ++c) mine[c] -= static_cast<float>(along * double{rows[j * n + c]});
      }
    const double length = std::sqrt(dot(mine, mine, n));
    const double factor = length > 1e-5 * before ? 1 / length : 0;
    for (std::int64_t c = 0; c < n; ++c) mine[c] = static_cast<float>(factor * double{mine[c]});
  }
}

/// Eigenvectors of a symmetric matrix (n, n) as rows, by the method of Jacobi; its diagonal becomes the eigenvalues.
std::vector<double> eigenvectors(std::vector<double>& m, std::size_t n) {
  std::vector<double> v(n * n);
  for (std::size_t i = 0; i < n; ++i) v[i * n + i] = 1;
  for (int sweep = 0; sweep < kSweeps; ++sweep)
    for (std::size_t p = 0; p < n; ++p)
      for (std::size_t q = p + 1; q < n; ++q) {
        if (m[p * n + q] == 0) continue;
        const double theta = (m[q * n + q] - m[p * n + p]) / (2 * m[p * n + q]);
        const double t = std::copysign(1 / (std::fabs(theta) + std::hypot(theta, 1)), theta);
        const double c = 1 / std::hypot(t, 1), s = t * c;
        const auto rotate = [&](double& a, double& b) {
          const double x = a, y = b;
          a = c * x - s * y, b = s * x + c * y;
        };
        for (std::size_t k = 0; k < n; ++k) rotate(m[k * n + p], m[k * n + q]);
        for (std::size_t k = 0; k < n; ++k) rotate(m[p * n + k], m[q * n + k]);
        for (std::size_t k = 0; k < n; ++k) rotate(v[p * n + k], v[q * n + k]);
      }
  return v;
}

/// (r, n): the rows of `from` (k, n), combined by the first r rows of `by`, in the order `order`, each times a factor.
OwnedTensor combined(const Tensor& from, const std::vector<double>& by, const std::vector<std::size_t>& order,
                     const std::vector<double>& factors) {
  const auto k = static_cast<std::size_t>(from[0]);
  const auto n = from[1];
  OwnedTensor out({{std::ssize(factors), n}, DType::f32});
  std::vector<double> row(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < factors.size(); ++i) {
    std::ranges::fill(row, 0);
    for (std::size_t j = 0; j < k; ++j)
      for (std::int64_t c = 0; c < n; ++c)
        row[static_cast<std::size_t>(c)] +=
            by[order[i] * k + j] * double{from.ptr<float>()[static_cast<std::int64_t>(j) * n + c]};
    for (std::int64_t c = 0; c < n; ++c)
      out.tensor.ptr<float>()[static_cast<std::int64_t>(i) * n + c] =
          static_cast<float>(factors[i] * row[static_cast<std::size_t>(c)]);
  }
  return out;
}

}  // namespace

LowRank nearest_of_rank(Pool& pool, const View& d, std::int64_t r) {
  const auto rows = d[0], columns = d[1], k = std::min(r + kMore, std::min(rows, columns));
  Stream s(pool);
  OwnedTensor right({{k, columns}, DType::f32}), left({{k, rows}, DType::f32});
  const Rng rng{1, 1};
  for (std::int64_t i = 0; i < right.tensor.size(); ++i)
    right.tensor.ptr<float>()[i] = static_cast<float>(rng.normal(static_cast<std::uint64_t>(i)));
  for (int i = 0; i < kIterations; ++i) {
    orthonormalise(right.tensor);
    Linear::forward(s, left.tensor, right.tensor, d, {}, {}, {});
    orthonormalise(left.tensor);
    Linear::forward(s, right.tensor, left.tensor, d, {}, {}, {.conv1d = true});
  }
  // d is nearly left^T right now. The squares of its singular values are the eigenvalues of right right^T.
  const auto n = static_cast<std::size_t>(k);
  std::vector<double> gram(n * n);
  const auto row = [&](std::size_t i) { return right.tensor.ptr<float>() + static_cast<std::int64_t>(i) * columns; };
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j) gram[i * n + j] = dot(row(i), row(j), columns);
  const auto vectors = eigenvectors(gram, n);
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, std::greater<>(), [&](std::size_t i) { return gram[i * n + i]; });
  std::vector<double> of_left, of_right;
  for (std::int64_t i = 0; i < r; ++i) {
    const auto at = order[static_cast<std::size_t>(i)];
    const double value = std::sqrt(std::max(gram[at * n + at], 0.0)), root = std::sqrt(value);
    of_left.push_back(root), of_right.push_back(value > 0 ? 1 / root : 0);
  }
  return {combined(left.tensor, vectors, order, of_left), combined(right.tensor, vectors, order, of_right)};
}

}  // namespace hpcdl::models
