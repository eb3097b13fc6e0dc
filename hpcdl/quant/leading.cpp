#include "hpcdl/quant/leading.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "hpcdl/buffer.h"
#include "hpcdl/core/error.h"
#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/rng.h"
#include "hpcdl/simd/isa.h"

namespace hpcdl::quant {
namespace {

constexpr std::int64_t kExact = 512;  // the smaller side of a matrix that is decomposed as a whole
constexpr int kIterations = 6;

std::size_t size_of(std::int64_t n) { return static_cast<std::size_t>(n); }

/// c (m, n) = a b.
std::vector<double> product(Pool& pool, const Wide& a, const Wide& b, std::int64_t m, std::int64_t n, std::int64_t k) {
  std::vector<double> c(size_of(m * n));
  simd::with_isa([&](auto isa) { cpu::wide_product(isa, pool, c.data(), n, a, b, m, n, k, 1, false); });
  return c;
}

/// A symmetric matrix as a tridiagonal one, with the vectors of Householder's reflections.
class Tridiagonal {
 public:
  Tridiagonal(Pool& pool, std::vector<double>& a, std::int64_t n) : pool_(pool), a_(a), n_(n) {
    diagonal.resize(size_of(n)), beside.resize(size_of(n)), factors_.resize(size_of(n));
    std::vector<double> p(size_of(n)), v(size_of(n));
    simd::with_isa([&](auto isa) {
      for (std::int64_t k = 0; k + 1 < n; ++k) {
        diagonal[size_of(k)] = *row(k, k);
        const auto left = n - k - 1;
        double* x = row(k, k + 1);  // equal to the column below the diagonal
        const double length = std::sqrt(cpu::wide_dot(isa, x, x, left));
        if (length == 0 || left == 1) {
          beside[size_of(k)] = left == 1 ? x[0] : 0;
          continue;
        }
        const double alpha = x[0] > 0 ? -length : length;
        beside[size_of(k)] = alpha;
        x[0] -= alpha;
        const double factor = factors_[size_of(k)] = 2 / cpu::wide_dot(isa, x, x, left);
        double* rest = row(k + 1, k + 1);
        std::copy_n(x, left, v.data());
        cpu::wide_rows(isa, pool_, p.data(), rest, n_, v.data(), left);
        const double half = factor * factor / 2 * cpu::wide_dot(isa, p.data(), v.data(), left);
        for (std::int64_t i = 0; i < left; ++i) p[size_of(i)] = factor * p[size_of(i)] - half * v[size_of(i)];
        cpu::wide_update(isa, pool_, rest, n_, v.data(), p.data(), left);
      }
      if (n > 0) diagonal[size_of(n - 1)] = *row(n - 1, n - 1);
    });
  }

  /// Turns the rows of z (rows, n), eigenvectors of the tridiagonal matrix, into those of the symmetric one.
  void turn_back(double* z, std::int64_t rows) {
    simd::with_isa([&](auto isa) {
      constexpr std::int64_t kTogether = 16;  // rows that stay in the cache while the reflections pass
      parallel_tasks(pool_, (rows + kTogether - 1) / kTogether, [&](std::int64_t task) {
        const auto begin = task * kTogether, end = std::min(rows, begin + kTogether);
        for (auto k = n_ - 2; k >= 0; --k) {
          const double factor = factors_[size_of(k)];
          if (factor == 0) continue;
          const double* v = row(k, k + 1);
          for (auto r = begin; r < end; ++r) {
            double* to = z + r * n_ + k + 1;
            cpu::wide_add(isa, to, -factor * cpu::wide_dot(isa, to, v, n_ - k - 1), v, n_ - k - 1);
          }
        }
      });
    });
  }

  std::vector<double> diagonal, beside;

 private:
  double* row(std::int64_t i, std::int64_t j) { return a_.data() + i * n_ + j; }

  Pool& pool_;
  std::vector<double>& a_;
  std::int64_t n_;
  std::vector<double> factors_;  // of the reflections I - factor v v^T
};

/// Diagonalises a tridiagonal matrix; the rows of z, (n, n), become its eigenvectors.
class QlIteration {
 public:
  QlIteration(Pool& pool, std::vector<double>& d, std::vector<double>& e, std::vector<double>& z)
      : pool_(pool), d_(d), e_(e), z_(z), n_(std::ssize(d)) {
    for (std::int64_t l = 0; l < n_; ++l)
      for (int i = 0; !converged(l); ++i) {
        require(i < kMost, "quant", "the eigenvalues of a matrix do not converge: it has numbers of the order {}",
                d_[size_of(l)]);
        sweep(l);
      }
    apply();
  }

 private:
  static constexpr int kMost = 80;
  static constexpr std::size_t kTurns = 1 << 17;  // that are applied together

  std::int64_t end_of(std::int64_t l) const {
    auto m = l;
    for (; m + 1 < n_; ++m) {
      const double size = std::fabs(d_[size_of(m)]) + std::fabs(d_[size_of(m + 1)]);
      if (std::fabs(e_[size_of(m)]) <= std::numeric_limits<double>::epsilon() * size) break;
    }
    return m;
  }
  bool converged(std::int64_t l) const { return end_of(l) == l; }

  void sweep(std::int64_t l) {
    const auto m = end_of(l);
    double g = (d_[size_of(l + 1)] - d_[size_of(l)]) / (2 * e_[size_of(l)]);
    double r = std::hypot(g, 1.0);
    g = d_[size_of(m)] - d_[size_of(l)] + e_[size_of(l)] / (g + std::copysign(r, g));
    double s = 1, c = 1, p = 0;
    std::int64_t i = m - 1;
    for (; i >= l; --i) {
      double f = s * e_[size_of(i)];
      const double b = c * e_[size_of(i)];
      r = std::hypot(f, g);
      e_[size_of(i + 1)] = r;
      if (r == 0) {
        d_[size_of(i + 1)] -= p;
        e_[size_of(m)] = 0;
        break;
      }
      s = f / r, c = g / r;
      g = d_[size_of(i + 1)] - p;
      r = (d_[size_of(i)] - g) * s + 2 * c * b;
      p = s * r;
      d_[size_of(i + 1)] = g + p;
      g = c * r - b;
      turns_.push_back({c, s, i});
    }
    if (turns_.size() >= kTurns) apply();
    if (r == 0 && i >= l) return;
    d_[size_of(l)] -= p;
    e_[size_of(l)] = g;
    e_[size_of(m)] = 0;
  }
  void apply() {
    simd::with_isa([&](auto isa) { cpu::wide_turns(isa, pool_, z_.data(), n_, turns_); });
    turns_.clear();
  }

  Pool& pool_;
  std::vector<double>&d_, &e_, &z_;
  std::int64_t n_;
  std::vector<Turn> turns_;
};

/// Makes the rows of q (count, n) orthonormal; those that depend on earlier ones become zero. Blocks of rows, each twice,
/// because one pass loses digits where rows are nearly parallel; it is enough between iterations.
void orthonormalise(Pool& pool, std::vector<double>& q, std::int64_t count, std::int64_t n, int passes = 2) {
  constexpr std::int64_t kStrip = 64;
  std::vector<double> along(size_of(kStrip * count));
  simd::with_isa([&](auto isa) {
    for (std::int64_t begin = 0; begin < count; begin += kStrip) {
      const auto rows = std::min(kStrip, count - begin);
      double* block = q.data() + begin * n;
      std::vector<double> before(size_of(rows));
      for (std::int64_t i = 0; i < rows; ++i)
        before[size_of(i)] = std::sqrt(cpu::wide_dot(isa, block + i * n, block + i * n, n));
      for (int pass = 0; pass < passes; ++pass) {
        if (begin > 0) {
          const Wide done{q.data(), n};
          cpu::wide_product(isa, pool, along.data(), begin, {block, n}, done.transposed(), rows, begin, n, 1, false);
          cpu::wide_product(isa, pool, block, n, {along.data(), begin}, done, rows, n, begin, -1, true);
        }
        for (std::int64_t i = 0; i < rows; ++i) {
          double* mine = block + i * n;
          for (std::int64_t j = 0; j < i; ++j)
            cpu::wide_add(isa, mine, -cpu::wide_dot(isa, mine, block + j * n, n), block + j * n, n);
          const double length = std::sqrt(cpu::wide_dot(isa, mine, mine, n));
          const double factor = length > 1e-12 * before[size_of(i)] ? 1 / length : 0;
          for (std::int64_t c = 0; c < n; ++c) mine[c] *= factor;
          if (pass == 0) before[size_of(i)] = factor == 0 ? 0 : 1;
        }
      }
    }
  });
}

/// b C for rows b (count, n), or b itself.
std::vector<double> weighed(Pool& pool, const WeighedMatrix& w, std::vector<double> b, std::int64_t count) {
  const auto n = w.columns;
  return w.moments ? product(pool, {b.data(), n}, {w.moments, n}, count, n, n) : std::move(b);
}

/// The leading eigenvectors of W C W^T in the span of the orthonormal rows of q (count, rows).
std::vector<double> leading_in(Pool& pool, const WeighedMatrix& w, const std::vector<double>& q, std::int64_t count,
                               std::int64_t wanted) {
  const auto m = w.rows, n = w.columns;
  const auto b = product(pool, {q.data(), m}, {w.values, w.stride, 1, true}, count, n, m);
  const auto bc = weighed(pool, w, b, count);
  auto small = product(pool, {bc.data(), n}, Wide{b.data(), n}.transposed(), count, count, n);
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t j = 0; j < i; ++j)
      small[size_of(i * count + j)] = small[size_of(j * count + i)] =
          (small[size_of(i * count + j)] + small[size_of(j * count + i)]) / 2;
  const auto eigen = symmetric_eigen(pool, small, count, std::min(wanted, count));
  auto u = product(pool, {eigen.vectors.data(), count}, {q.data(), m}, std::min(wanted, count), m, count);
  u.resize(size_of(wanted * m));
  return u;
}

/// An orthonormal basis of all that W gives, if one of its sides is small: rows (count, w.rows).
std::vector<double> whole_basis(Pool& pool, const WeighedMatrix& w, std::int64_t count) {
  const auto m = w.rows;
  std::vector<double> q(size_of(count * m));
  if (m == count) {
    for (std::int64_t i = 0; i < m; ++i) q[size_of(i * m + i)] = 1;
    return q;
  }
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t j = 0; j < m; ++j) q[size_of(i * m + j)] = static_cast<double>(w.values[j * w.stride + i]);
  orthonormalise(pool, q, count, m);
  return q;
}

/// A basis (count, w.rows) near the leading eigenvectors of W C W^T.
std::vector<double> iterated_basis(Pool& pool, const WeighedMatrix& w, std::int64_t count) {
  const auto m = w.rows, n = w.columns;
  Stream s(pool);
  OwnedTensor inputs({{count, n}, DType::f32}), outputs({{count, m}, DType::f32}), moments;
  const View values(w.values, Spec{{m, n}, DType::f32}, Shape{w.stride, 1}, Device());
  const Rng rng{1, 1};
  for (std::int64_t i = 0; i < inputs.tensor.size(); ++i)
    inputs.tensor.ptr<float>()[i] = static_cast<float>(rng.normal(static_cast<std::uint64_t>(i)));
  if (w.moments) {
    moments = OwnedTensor({{n, n}, DType::f32});
    std::transform(w.moments, w.moments + n * n, moments.tensor.ptr<float>(),
                   [](double x) { return static_cast<float>(x); });
  }
  // The shorter vectors are made orthonormal between iterations: any basis of their span serves.
  const auto orthonormal = [&](const OwnedTensor& t, int passes) {
    std::vector<double> q(t.tensor.ptr<float>(), t.tensor.ptr<float>() + t.tensor.size());
    orthonormalise(pool, q, count, t.tensor[1], passes);
    return q;
  };
  const auto settle = [&](const OwnedTensor& t) {
    std::ranges::transform(orthonormal(t, 1), t.tensor.ptr<float>(), [](double x) { return static_cast<float>(x); });
  };
  for (int i = 0;; ++i) {
    if (w.moments) {
      OwnedTensor turned({{count, n}, DType::f32});
      Linear::forward(s, turned.tensor, inputs.tensor, moments.tensor, {}, {}, {});
      std::swap(turned, inputs);
    }
    Linear::forward(s, outputs.tensor, inputs.tensor, values, {}, {}, {});
    if (i == kIterations) return orthonormal(outputs, 2);
    if (m <= n) settle(outputs);
    Linear::forward(s, inputs.tensor, outputs.tensor, values, {}, {}, {.conv1d = true});
    if (m > n) settle(inputs);
  }
}

}  // namespace

Eigen symmetric_eigen(Pool& pool, std::vector<double>& matrix, std::int64_t n, std::int64_t wanted) {
  Tridiagonal t(pool, matrix, n);
  std::vector<double> z(size_of(n * n));
  for (std::int64_t i = 0; i < n; ++i) z[size_of(i * n + i)] = 1;
  QlIteration(pool, t.diagonal, t.beside, z);
  std::vector<std::int64_t> order(size_of(n));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(), [&](std::int64_t i) { return t.diagonal[size_of(i)]; });
  Eigen eigen;
  for (const auto i : order) eigen.values.push_back(t.diagonal[size_of(i)]);
  for (std::int64_t r = 0; r < wanted; ++r) {
    const auto* from = z.data() + order[size_of(r)] * n;
    eigen.vectors.insert(eigen.vectors.end(), from, from + n);
  }
  t.turn_back(eigen.vectors.data(), wanted);
  return eigen;
}

std::vector<double> leading_outputs(Pool& pool, const WeighedMatrix& w, std::int64_t wanted) {
  const auto side = std::min(w.rows, w.columns), count = wanted + wanted / 8 + 16;
  if (side <= kExact || count >= side) return leading_in(pool, w, whole_basis(pool, w, side), side, wanted);
  return leading_in(pool, w, iterated_basis(pool, w, count), count, wanted);
}

}  // namespace hpcdl::quant
