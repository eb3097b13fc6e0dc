#include "hpcdl/quant/blast.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/quant/compensate_rows.h"

namespace hpcdl::quant {
namespace {

constexpr int kTurns = 12;
constexpr double kBlastDamping = 1e-9;  // of the mean of a diagonal

/// Solves X K = R for the rows of R, which become those of X.
class Solver {
 public:
  /// K (n, n), symmetric and not negative.
  Solver(Pool& pool, std::vector<double> k, std::int64_t n) : pool_(pool), l_(std::move(k)), n_(n) {
    double trace = 0;
    for (std::int64_t i = 0; i < n; ++i) trace += l_[index(i, i)];
    double added = kBlastDamping * trace / static_cast<double>(n);
    if (trace <= 0) added = 1;
    const auto original = l_;
    std::vector<double> scratch(static_cast<std::size_t>(kIndicesTogether * n));
    for (int i = 0;; ++i, added *= 100) {
      for (std::int64_t d = 0; d < n; ++d) l_[index(d, d)] = original[index(d, d)] + added;
      bool positive = false;
      simd::with_isa([&](auto isa) { positive = hpcdl::cpu::cholesky(isa, pool_, l_.data(), n_, scratch.data()); });
      if (positive) break;
      require(i < 6, "compress", "the factors of a blast matrix do not converge: use --method monarch");
      l_ = original;
    }
  }
  void solve(double* rows, std::int64_t count) const {
    simd::with_isa([&](auto isa) {
      parallel_tasks(pool_, count, [&](std::int64_t r) {
        double* x = rows + r * n_;
        for (std::int64_t i = 0; i < n_; ++i)
          x[i] = (x[i] - hpcdl::cpu::wide_dot(isa, l_.data() + i * n_, x, i)) / l_[index(i, i)];
        for (auto i = n_ - 1; i >= 0; --i) {
          x[i] /= l_[index(i, i)];
          hpcdl::cpu::wide_add(isa, x, -x[i], l_.data() + i * n_, i);
        }
      });
    });
  }

 private:
  std::size_t index(std::int64_t i, std::int64_t j) const { return static_cast<std::size_t>(i * n_ + j); }

  Pool& pool_;
  std::vector<double> l_;
  std::int64_t n_;
};

class BlastFit {
 public:
  BlastFit(Pool& pool, const WeighedMatrix& w, const nn::Structure& s, const Factors& from)
      : pool_(pool), w_(w), B_(s.blocks), r_(s.rank), M_(w.rows / B_), P_(w.columns / B_) {
    u_.resize(size(w.rows * r_)), v_.resize(size(w.columns * r_)), s_.assign(size(r_ * B_ * B_), 1);
    std::copy_n(from.output.tensor.ptr<float>(), u_.size(), u_.data());
    const auto* rows = from.input.tensor.ptr<float>();
    for (std::int64_t t = 0; t < r_; ++t)
      for (std::int64_t c = 0; c < w.columns; ++c)
        v_[size((c / P_ * r_ + t) * P_ + c % P_)] = static_cast<double>(rows[t * w.columns + c]);
    of_u_.resize(size(B_)), of_v_.resize(size(B_));
    for (std::int64_t i = 0; i < B_; ++i) of_u_[size(i)] = gram_of_u(i), of_v_[size(i)] = gram_of_v(i);
  }

  /// Fits the scales and the outputs of each row of parts, then the inputs of each column.
  void turn() {
    for (std::int64_t i = 0; i < B_; ++i) fit_row(i);
    for (std::int64_t j = 0; j < B_; ++j) fit_column(j);
  }

  Factors factors() {
    balance();
    Factors f;
    f.input = OwnedTensor({{B_, r_, P_}, DType::f32}), f.scale = OwnedTensor({{r_, B_, B_}, DType::f32});
    f.output = OwnedTensor({{B_, M_, r_}, DType::f32});
    const auto narrow = [](const std::vector<double>& from, const OwnedTensor& to) {
      std::ranges::transform(from, to.tensor.ptr<float>(), [](double x) { return static_cast<float>(x); });
    };
    narrow(v_, f.input), narrow(s_, f.scale), narrow(u_, f.output);
    return f;
  }

 private:
  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }
  double& scale(std::int64_t t, std::int64_t i, std::int64_t j) { return s_[size((t * B_ + i) * B_ + j)]; }
  double* outputs(std::int64_t i) { return u_.data() + i * M_ * r_; }
  double* inputs(std::int64_t j) { return v_.data() + j * r_ * P_; }
  Wide part(std::int64_t i, std::int64_t j) const {
    return {w_.values + i * M_ * w_.stride + j * P_, w_.stride, 1, true};
  }
  std::vector<double> product(const Wide& a, const Wide& b, std::int64_t m, std::int64_t n, std::int64_t k) {
    std::vector<double> c(size(m * n));
    simd::with_isa([&](auto isa) { hpcdl::cpu::wide_product(isa, pool_, c.data(), n, a, b, m, n, k, 1, false); });
    return c;
  }
  std::vector<double> gram_of_u(std::int64_t i) {
    const Wide u{outputs(i), r_};
    return product(u.transposed(), u, r_, r_, M_);
  }
  std::vector<double> gram_of_v(std::int64_t j) {
    const Wide v{inputs(j), P_};
    return product(v, v.transposed(), r_, r_, P_);
  }

  /// to[a, b] += x_a x_b gram[a, b], for the scales x of part (i, j).
  void add_scaled(std::vector<double>& to, const std::vector<double>& gram, std::int64_t i, std::int64_t j) {
    for (std::int64_t a = 0; a < r_; ++a)
      for (std::int64_t b = 0; b < r_; ++b)
        to[size(a * r_ + b)] += scale(a, i, j) * scale(b, i, j) * gram[size(a * r_ + b)];
  }

  void fit_row(std::int64_t i) {
    std::vector<double> sum(size(M_ * r_)), k(size(r_ * r_));
    for (std::int64_t j = 0; j < B_; ++j) {
      const auto seen = product(part(i, j), Wide{inputs(j), P_}.transposed(), M_, r_, P_);  // W_ij V_j^T
      std::vector<double> both(size(r_ * r_)), wanted(size(r_));
      for (std::size_t e = 0; e < both.size(); ++e) both[e] = of_u_[size(i)][e] * of_v_[size(j)][e];
      for (std::int64_t m = 0; m < M_; ++m)
        for (std::int64_t t = 0; t < r_; ++t) wanted[size(t)] += outputs(i)[m * r_ + t] * seen[size(m * r_ + t)];
      Solver(pool_, std::move(both), r_).solve(wanted.data(), 1);
      for (std::int64_t t = 0; t < r_; ++t) scale(t, i, j) = wanted[size(t)];
      for (std::int64_t m = 0; m < M_; ++m)
        for (std::int64_t t = 0; t < r_; ++t) sum[size(m * r_ + t)] += scale(t, i, j) * seen[size(m * r_ + t)];
      add_scaled(k, of_v_[size(j)], i, j);
    }
    Solver(pool_, std::move(k), r_).solve(sum.data(), M_);
    std::ranges::copy(sum, outputs(i));
    of_u_[size(i)] = gram_of_u(i);
  }

  void fit_column(std::int64_t j) {
    std::vector<double> sum(size(P_ * r_)), k(size(r_ * r_));
    for (std::int64_t i = 0; i < B_; ++i) {
      const auto seen = product(part(i, j).transposed(), {outputs(i), r_}, P_, r_, M_);  // W_ij^T U_i
      for (std::int64_t p = 0; p < P_; ++p)
        for (std::int64_t t = 0; t < r_; ++t) sum[size(p * r_ + t)] += scale(t, i, j) * seen[size(p * r_ + t)];
      add_scaled(k, of_u_[size(i)], i, j);
    }
    Solver(pool_, std::move(k), r_).solve(sum.data(), P_);
    for (std::int64_t p = 0; p < P_; ++p)
      for (std::int64_t t = 0; t < r_; ++t) inputs(j)[t * P_ + p] = sum[size(p * r_ + t)];
    of_v_[size(j)] = gram_of_v(j);
  }

  /// The scales of a rank get a mean square of 1, and its outputs and inputs equal length.
  void balance() {
    for (std::int64_t t = 0; t < r_; ++t) {
      double u = 0, v = 0, s = 0;
      for (std::int64_t o = 0; o < B_ * M_; ++o) u += u_[size(o * r_ + t)] * u_[size(o * r_ + t)];
      const auto for_inputs = [&](auto&& f) {
        for (std::int64_t j = 0; j < B_; ++j)
          for (std::int64_t p = 0; p < P_; ++p) f(inputs(j)[t * P_ + p]);
      };
      for_inputs([&](const double& x) { v += x * x; });
      for (std::int64_t e = 0; e < B_ * B_; ++e) s += s_[size(t * B_ * B_ + e)] * s_[size(t * B_ * B_ + e)];
      u = std::sqrt(u), v = std::sqrt(v), s = std::sqrt(s) / static_cast<double>(B_);
      if (u == 0 || v == 0 || s == 0) continue;
      const double length = std::sqrt(u * v * s);
      for (std::int64_t o = 0; o < B_ * M_; ++o) u_[size(o * r_ + t)] *= length / u;
      for_inputs([&](double& x) { x *= length / v; });
      for (std::int64_t e = 0; e < B_ * B_; ++e) s_[size(t * B_ * B_ + e)] /= s;
    }
  }

  Pool& pool_;
  const WeighedMatrix& w_;
  std::int64_t B_, r_, M_, P_;
  std::vector<double> u_, v_, s_;                 // (B, M, rank), (B, rank, P), (rank, B, B)
  std::vector<std::vector<double>> of_u_, of_v_;  // U_i^T U_i, V_j V_j^T
};

}  // namespace

Factors fit_blast(Pool& pool, const WeighedMatrix& w, const nn::Structure& structure, const Factors& low_rank) {
  BlastFit fit(pool, w, structure, low_rank);
  for (int i = 0; i < kTurns; ++i) fit.turn();
  return fit.factors();
}

}  // namespace hpcdl::quant
