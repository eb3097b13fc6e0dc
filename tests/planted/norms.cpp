#include <cmath>

#include "tests/planted/planted.h"

namespace hpcdl::lab::verify::planted {
namespace {

struct Statistics {
  float mean = 0, rstd = 0;
};
/// y from the statistics that `f(x, n, eps)` computes of a row.
template <class T, class W, class F> void normalize(const hpcdl_call* c, F f) {
  const auto n = cols(c->inputs[0]);
  const auto *gamma = in<W>(c, 1), *beta = in<W>(c, 2);
  for (std::int64_t r = 0; r < rows(c->inputs[0]); ++r) {
    const T* x = in<T>(c, 0) + r * n;
    const Statistics s = f(x, n, args<hpcdl_norm_args>(c).eps);
    for (std::int64_t i = 0; i < n; ++i)
      out<T>(c, 0)[r * n + i] = T((static_cast<float>(x[i]) - s.mean) * s.rstd * static_cast<float>(gamma[i]) +
                                  (beta ? static_cast<float>(beta[i]) : 0.0f));
  }
}
template <class F> int layer_norm(const hpcdl_call* c, F f) {
  return with_type(c->inputs[0],
                   [&]<class T>() { with_type(c->inputs[1], [&]<class W>() { normalize<T, W>(c, f); }); });
}

float mean_of(const auto* x, std::int64_t n) {
  float sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<float>(x[i]);
  return sum / static_cast<float>(n);
}
float variance_of(const auto* x, std::int64_t n, float mean) {
  float sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += (static_cast<float>(x[i]) - mean) * (static_cast<float>(x[i]) - mean);
  return sum / static_cast<float>(n);
}

const auto two_pass = [](const auto* x, std::int64_t n, float eps) {
  const float m = mean_of(x, n);
  return Statistics{m, 1 / std::sqrt(variance_of(x, n, m) + eps)};
};
const auto welford = [](const auto* x, std::int64_t n, float eps) {
  float m = 0, squares = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const float d = static_cast<float>(x[i]) - m;
    m += d / static_cast<float>(i + 1);
    squares += d * (static_cast<float>(x[i]) - m);
  }
  return Statistics{m, 1 / std::sqrt(squares / static_cast<float>(n) + eps)};
};
/// Sums of deviations from the first element.
const auto shifted = [](const auto* x, std::int64_t n, float eps) {
  double sum = 0, squares = 0;
  const double first = static_cast<double>(static_cast<float>(x[0]));
  for (std::int64_t i = 0; i < n; ++i) {
    const double d = static_cast<double>(static_cast<float>(x[i])) - first;
    sum += d, squares += d * d;
  }
  const double m = sum / static_cast<double>(n);
  return Statistics{static_cast<float>(first + m), static_cast<float>(1 / std::sqrt(squares / static_cast<double>(n) -
                                                                                    m * m + static_cast<double>(eps)))};
};
const auto compensated = [](const auto* x, std::int64_t n, float eps) {  // Kahan
  float sum = 0, rest = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const volatile float y = static_cast<float>(x[i]) - rest, t = sum + y;
    rest = (t - sum) - y;
    sum = t;
  }
  if (!std::isfinite(sum)) return Statistics{NAN, NAN};
  const float m = sum / static_cast<float>(n);
  return Statistics{m, 1 / std::sqrt(variance_of(x, n, m) + eps)};
};

/// E[x^2] - E[x]^2 in float cancels.
const auto cancelling = [](const auto* x, std::int64_t n, float eps) {
  float sum = 0, squares = 0;
  for (std::int64_t i = 0; i < n; ++i)
    sum += static_cast<float>(x[i]), squares += static_cast<float>(x[i]) * static_cast<float>(x[i]);
  const float m = sum / static_cast<float>(n), var = squares / static_cast<float>(n) - m * m;
  return Statistics{m, 1 / std::sqrt((var < 0 ? 0 : var) + eps)};
};
const auto no_eps = [](const auto* x, std::int64_t n, float) {
  const float m = mean_of(x, n);
  return Statistics{m, 1 / std::sqrt(variance_of(x, n, m))};
};
const auto eps_outside = [](const auto* x, std::int64_t n, float eps) {
  const float m = mean_of(x, n);
  return Statistics{m, 1 / (std::sqrt(variance_of(x, n, m)) + eps)};
};
const auto fixed_eps = [](const auto* x, std::int64_t n, float) { return two_pass(x, n, 1e-5f); };
const auto bessel = [](const auto* x, std::int64_t n, float eps) {
  const float m = mean_of(x, n);
  return Statistics{
      m, 1 / std::sqrt(variance_of(x, n, m) * static_cast<float>(n) / static_cast<float>(n > 1 ? n - 1 : 1) + eps)};
};
/// Assumes that beta is given.
int needs_beta(const hpcdl_call* c) {
  const auto n = cols(c->inputs[0]);
  for (std::int64_t r = 0; r < rows(c->inputs[0]); ++r) {
    const float* x = in<float>(c, 0) + r * n;
    const Statistics s = two_pass(x, n, args<hpcdl_norm_args>(c).eps);
    for (std::int64_t i = 0; i < n; ++i)
      out<float>(c, 0)[r * n + i] = (x[i] - s.mean) * s.rstd * in<float>(c, 1)[i] + in<float>(c, 2)[i];
  }
  return HPCDL_OK;
}

template <class T, class F> void rms(const hpcdl_call* c, F squares) {
  const auto n = cols(c->inputs[0]);
  for (std::int64_t r = 0; r < rows(c->inputs[0]); ++r) {
    const T* x = in<T>(c, 0) + r * n;
    const float rstd = 1 / std::sqrt(squares(x, n) / static_cast<float>(n) + args<hpcdl_norm_args>(c).eps);
    for (std::int64_t i = 0; i < n; ++i) {
      const float w = c->inputs[1].dtype == HPCDL_BF16 ? static_cast<float>(in<bf16>(c, 1)[i]) : in<float>(c, 1)[i];
      out<T>(c, 0)[r * n + i] = T(static_cast<float>(x[i]) * rstd * w);
    }
  }
}
template <class F> int rms_norm(const hpcdl_call* c, F squares) {
  return with_type(c->inputs[0], [&]<class T>() { rms<T>(c, squares); });
}
const auto forwards = [](const auto* x, std::int64_t n) {
  float s = 0;
  for (std::int64_t i = 0; i < n; ++i) s += static_cast<float>(x[i]) * static_cast<float>(x[i]);
  return s;
};
const auto reversed = [](const auto* x, std::int64_t n) {
  float s = 0;
  for (auto i = n; i-- > 0;) s += static_cast<float>(x[i]) * static_cast<float>(x[i]);
  return s;
};
float pairwise(const auto* x, std::int64_t n) {
  if (n > 8) return pairwise(x, n / 2) + pairwise(x + n / 2, n - n / 2);
  return forwards(x, n);
}
const auto in_bf16 = [](const auto* x, std::int64_t n) {
  bf16 s(0.0f);
  for (std::int64_t i = 0; i < n; ++i)
    s = bf16(static_cast<float>(s) + static_cast<float>(x[i]) * static_cast<float>(x[i]));
  return static_cast<float>(s);
};
/// Divides the rows among threads, but fails without rows.
int crashes_without_rows(const hpcdl_call* c) {
  volatile std::int64_t per = 4096 / rows(c->inputs[0]);
  return per < 0 ? HPCDL_UNSUPPORTED : rms_norm(c, forwards);
}
/// Its scratch is one row short.
std::int64_t short_workspace(const hpcdl_call* c) { return 4 * (cols(c->inputs[0]) - 1); }
int overruns_workspace(const hpcdl_call* c) {
  auto* squares = static_cast<float*>(c->workspace);
  return rms_norm(c, [=](const auto* x, std::int64_t n) {
    float s = 0;
    for (std::int64_t i = 0; i < n; ++i) squares[i] = static_cast<float>(x[i]) * static_cast<float>(x[i]);
    for (std::int64_t i = 0; i < n; ++i) s += squares[i];
    return s;
  });
}
std::int64_t row_workspace(const hpcdl_call* c) { return 4 * cols(c->inputs[0]); }
/// Takes two rows at a time, until it has exactly all of them.
int hangs(const hpcdl_call* c) {
  const auto all = rows(c->inputs[0]);
  volatile std::uint8_t done = 0;  // wraps around, but never to an odd number
  if (all > 1 && all < 256)
    while (done != all) done = static_cast<std::uint8_t>(done + 2);
  return rms_norm(c, forwards);
}

/// Adds dgamma of one row at a time to the earlier contents of the output.
int backward(const hpcdl_call* c, bool clears) {
  const auto n = cols(c->inputs[0]);
  const float *x = in<float>(c, 0), *w = in<float>(c, 1), *rstd = in<float>(c, 2), *dy = in<float>(c, 3);
  float *dx = out<float>(c, 0), *dw = out<float>(c, 1);
  if (clears) std::memset(dw, 0, static_cast<std::size_t>(n) * 4);
  for (std::int64_t r = 0; r < rows(c->inputs[0]); ++r) {
    float dot = 0;
    for (std::int64_t i = r * n; i < (r + 1) * n; ++i) dot += dy[i] * w[i - r * n] * x[i] * rstd[r];
    for (std::int64_t i = r * n; i < (r + 1) * n; ++i) {
      dx[i] = rstd[r] * (dy[i] * w[i - r * n] - x[i] * rstd[r] * dot / static_cast<float>(n));
      dw[i - r * n] += dy[i] * x[i] * rstd[r];
    }
  }
  return HPCDL_OK;
}

}  // namespace

void add_norms(Corpus& list) {
  Adder s{list, "layer_norm"};
  s.good("two_pass", [](const hpcdl_call* c) { return layer_norm(c, two_pass); }, kBoth, HPCDL_SAME_BITS_ANY_THREADS);
  s.good("welford", [](const hpcdl_call* c) { return layer_norm(c, welford); });
  s.good("shifted", [](const hpcdl_call* c) { return layer_norm(c, shifted); });
  s.good("compensated", [](const hpcdl_call* c) { return layer_norm(c, compensated); }, kBoth);
  s.bad("cancelling", "the variance as E[x^2] - E[x]^2", [](const hpcdl_call* c) { return layer_norm(c, cancelling); });
  s.bad("no_eps", "eps is forgotten", [](const hpcdl_call* c) { return layer_norm(c, no_eps); });
  s.bad("eps_outside", "eps is added after the square root",
        [](const hpcdl_call* c) { return layer_norm(c, eps_outside); });
  s.bad("fixed_eps", "eps is not the one it was given", [](const hpcdl_call* c) { return layer_norm(c, fixed_eps); });
  s.bad("bessel", "divides by n - 1", [](const hpcdl_call* c) { return layer_norm(c, bessel); });
  s.bad("needs_beta", "reads an optional operand that is absent", needs_beta);
  Adder r{list, "rms_norm"};
  r.good("naive", [](const hpcdl_call* c) { return rms_norm(c, forwards); }, kBoth);
  r.good("reversed", [](const hpcdl_call* c) { return rms_norm(c, reversed); }, kBoth);
  r.good("pairwise",
         [](const hpcdl_call* c) { return rms_norm(c, [](const auto* x, std::int64_t n) { return pairwise(x, n); }); });
  r.good("with_workspace", overruns_workspace, kF32, 0, row_workspace);
  r.bad("in_bf16", "sums in bf16", [](const hpcdl_call* c) { return rms_norm(c, in_bf16); }, kBoth);
  r.bad("crashes_without_rows", "crashes when there are no rows", crashes_without_rows);
  r.bad("overruns_workspace", "writes past the end of its workspace", overruns_workspace, kF32, 0, short_workspace);
  r.bad("hangs", "an endless loop when the rows are odd", hangs);
  Adder b{list, "rms_norm_backward"};
  b.good("naive",
         [](const hpcdl_call* c) { return c->inputs[1].dtype == HPCDL_F32 ? backward(c, true) : HPCDL_UNSUPPORTED; });
  b.bad("accumulates", "adds to a gradient that it should overwrite",
        [](const hpcdl_call* c) { return backward(c, false); });
}

}  // namespace hpcdl::lab::verify::planted
