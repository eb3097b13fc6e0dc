// Scores far from 0, as masks of -1e10 and -1e30 produce them: every float value is a valid score. Tests every way to
// compute attention and its gradients, on every instruction set and on a GPU, against loops in double. Only the first
// element of queries and keys is not 0, so scores are exact.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/ops/attention/attention.h"
#include "hpcdl/ops/attention/device_attention.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/every_isa.h"

namespace hpcdl {
namespace {

constexpr int kPatterns = 9, kPatternsOf16Bits = 2;  // the first two are within the range of f16

/// The first element of key j of n. Half of 3e38 leaves room for the scale and for computations on pairs of 16 bits.
double key_element(int pattern, std::int64_t j, std::int64_t n) {
  const double ordinary = static_cast<double>(j * 7919 % 97) / 32;
  switch (pattern) {
    case 0: return 40000 + ordinary;
    case 1: return j % 4 == 0 ? 20000 : 19968;
    case 2: return 400000 + 8 * ordinary;
    case 3: return -1e10;
    case 4: return -1e30;
    case 5: return j == n / 3 ? ordinary : -1e10;
    case 6: return j < n - n / 4 ? -1e30 : ordinary;
    case 7: return j % 2 == 0 ? -1e10 : -0x1p127;
    default: return j % 3 == 0 ? 1e38 : j % 3 == 1 ? -1e38 : ordinary;
  }
}
double query_element(std::int64_t t) { return t % 3 == 0 ? 1 : t % 3 == 1 ? 0.5 : -1; }

struct Case {
  std::int64_t queries, keys;
  int heads, kv_heads;
  std::int64_t width;
  bool causal = true;
};

template <class T> struct Problem {
  Case c;
  Stream& s;
  OwnedTensor q, k, v, out, lse, scratch;
  OwnedTensor there[3];  // q, k, v
  Attention::Args args;

  Problem(Stream& stream, const Case& which, int pattern)
      : c(which),
        s(stream),
        q({{1, c.queries, c.heads, c.width}, dtype_of<T>}),
        k({{1, c.keys, c.kv_heads, c.width}, dtype_of<T>}),
        v(k.tensor.spec()),
        out(q.tensor.spec(), s.device()),
        lse({{1, c.heads, c.queries}, DType::f32}, s.device()),
        args{.heads = c.heads, .kv_heads = c.kv_heads, .causal = c.causal, .scale = 0.25f} {
    const auto fill = [&](OwnedTensor& x, OwnedTensor& to, auto element) {
      const std::int64_t rows = x.tensor.size() / c.width;
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t i = 0; i < c.width; ++i)
          x.tensor.template ptr<T>()[r * c.width + i] = T(static_cast<float>(element(r, i)));
      to = OwnedTensor(x.tensor.spec(), s.device());
      copy(s, to.tensor, x.tensor);
    };
    fill(q, there[0], [&](std::int64_t r, std::int64_t i) { return i == 0 ? query_element(r / c.heads) : 0; });
    fill(k, there[1],
         [&](std::int64_t r, std::int64_t i) { return i == 0 ? key_element(pattern, r / c.kv_heads, c.keys) : 0; });
    fill(v, there[2], [&](std::int64_t r, std::int64_t i) {
      return Rng{5}.uniform(static_cast<std::uint64_t>(r * c.width + i)) * 2 - 1;
    });
    scratch = OwnedTensor(Attention::scratch(q.tensor.spec(), k.tensor.spec(), v.tensor.spec(), args)[0], s.device());
  }

  void forward() {
    Attention::forward(s, out.tensor, lse.tensor, there[0].tensor, there[1].tensor, there[2].tensor, scratch.tensor,
                       args);
  }

  /// For values within [-1, 1].
  void expect_right(double tolerance) {
    OwnedTensor y(q.tensor.spec()), log_sums(lse.tensor.spec());
    copy(s, y.tensor, out.tensor);
    copy(s, log_sums.tensor, lse.tensor);
    s.synchronize();
    const auto at = [](const OwnedTensor& x, std::int64_t i) {
      return static_cast<double>(static_cast<float>(x.tensor.template ptr<T>()[i]));
    };
    std::vector<double> p(static_cast<std::size_t>(c.keys));
    for (std::int64_t t = 0; t < c.queries; ++t)
      for (int h = 0; h < c.heads; ++h) {
        const std::int64_t g = h * c.kv_heads / c.heads, seen = c.causal ? t + c.keys - c.queries + 1 : c.keys;
        double top = -INFINITY, sum = 0;
        for (std::int64_t j = 0; j < seen; ++j) {
          p[static_cast<std::size_t>(j)] =
              0.25 * at(q, (t * c.heads + h) * c.width) * at(k, (j * c.kv_heads + g) * c.width);
          top = std::max(top, p[static_cast<std::size_t>(j)]);
        }
        for (std::int64_t j = 0; j < seen; ++j)
          sum += p[static_cast<std::size_t>(j)] = std::exp(p[static_cast<std::size_t>(j)] - top);
        const double want_lse = top + std::log(sum);
        ASSERT_NEAR(log_sums.tensor.template ptr<float>()[h * c.queries + t], want_lse,
                    1e-2 + 1e-4 * std::fabs(want_lse))
            << "query " << t << ", head " << h;
        for (std::int64_t i = 0; i < c.width; ++i) {
          double want = 0;
          for (std::int64_t j = 0; j < seen; ++j)
            want += p[static_cast<std::size_t>(j)] / sum * at(v, (j * c.kv_heads + g) * c.width + i);
          ASSERT_NEAR(at(y, (t * c.heads + h) * c.width + i), want, tolerance)
              << "query " << t << ", head " << h << ", element " << i;
        }
      }
  }
};

/// Gradients in double, and the sums of magnitudes that their errors are relative to.
struct Gradients {
  std::vector<double> dq, dk, dv, dq_size, dk_size, dv_size;
};

/// A problem's gradients for a random dout.
template <class T> struct Backward {
  Problem<T>& p;
  OwnedTensor dout, there, dq, dk, dv, scratch;
  Gradients want;

  explicit Backward(Problem<T>& problem)
      : p(problem),
        dout(p.q.tensor.spec()),
        there(dout.tensor.spec(), p.s.device()),
        dq(p.q.tensor.spec(), p.s.device()),
        dk(p.k.tensor.spec(), p.s.device()),
        dv(p.v.tensor.spec(), p.s.device()),
        scratch(Attention::backward_scratch(p.q.tensor.spec(), p.k.tensor.spec(), p.v.tensor.spec(), p.args)[0],
                p.s.device()) {
    for (std::int64_t i = 0; i < dout.tensor.size(); ++i)
      dout.tensor.template ptr<T>()[i] = T(static_cast<float>(Rng{6}.uniform(static_cast<std::uint64_t>(i)) * 2 - 1));
    copy(p.s, there.tensor, dout.tensor);
    find();
  }

  void find() {
    const auto get = [](const OwnedTensor& x, std::int64_t i) {
      return static_cast<double>(static_cast<float>(x.tensor.template ptr<T>()[i]));
    };
    const Case& c = p.c;
    const std::int64_t width = c.width;
    const auto queries = static_cast<std::size_t>(p.q.tensor.size()),
               keys = static_cast<std::size_t>(p.k.tensor.size());
    for (auto* x : {&want.dq, &want.dq_size}) x->assign(queries, 0);
    for (auto* x : {&want.dk, &want.dk_size, &want.dv, &want.dv_size}) x->assign(keys, 0);
    std::vector<double> e(static_cast<std::size_t>(c.keys)), dp(e.size());
    for (std::int64_t t = 0; t < c.queries; ++t)
      for (int h = 0; h < c.heads; ++h) {
        const std::int64_t g = h * c.kv_heads / c.heads, seen = c.causal ? t + c.keys - c.queries + 1 : c.keys,
                           row = (t * c.heads + h) * width;
        const auto key = [&](std::int64_t j) { return (j * c.kv_heads + g) * width; };
        double top = -INFINITY, sum = 0, delta = 0, delta_size = 0;
        for (std::int64_t j = 0; j < seen; ++j) {
          const auto at = static_cast<std::size_t>(j);
          e[at] = 0.25 * get(p.q, row) * get(p.k, key(j)), dp[at] = 0;
          top = std::max(top, e[at]);
          for (std::int64_t i = 0; i < width; ++i) dp[at] += get(dout, row + i) * get(p.v, key(j) + i);
        }
        for (std::int64_t j = 0; j < seen; ++j)
          sum += e[static_cast<std::size_t>(j)] = std::exp(e[static_cast<std::size_t>(j)] - top);
        for (std::int64_t j = 0; j < seen; ++j) {
          const auto at = static_cast<std::size_t>(j);
          e[at] /= sum;
          delta += e[at] * dp[at], delta_size += e[at] * std::fabs(dp[at]);
        }
        for (std::int64_t j = 0; j < seen; ++j) {
          const auto at = static_cast<std::size_t>(j);
          const double ds = 0.25 * e[at] * (dp[at] - delta), size = 0.25 * e[at] * (std::fabs(dp[at]) + delta_size);
          for (std::int64_t i = 0; i < width; ++i) {
            const auto of_query = static_cast<std::size_t>(row + i), of_key = static_cast<std::size_t>(key(j) + i);
            const double q = get(p.q, row + i), k = get(p.k, key(j) + i), part = e[at] * get(dout, row + i);
            want.dq[of_query] += ds * k, want.dq_size[of_query] += size * std::fabs(k);
            want.dk[of_key] += ds * q, want.dk_size[of_key] += size * std::fabs(q);
            want.dv[of_key] += part, want.dv_size[of_key] += std::fabs(part);
          }
        }
      }
  }

  void expect_right(double tolerance) {
    const auto near = [&](const OwnedTensor& x, const std::vector<double>& of, const std::vector<double>& size,
                          const char* name) {
      OwnedTensor got(x.tensor.spec());
      copy(p.s, got.tensor, x.tensor);
      p.s.synchronize();
      for (std::size_t i = 0; i < of.size(); ++i) {
        if (size[i] > 1e36) continue;  // parts of the sum are beyond f32
        ASSERT_NEAR(static_cast<double>(static_cast<float>(got.tensor.template ptr<T>()[i])), of[i],
                    tolerance * (1e-2 + size[i]))
            << name << ", element " << i;
      }
    };
    near(dv, want.dv, want.dv_size, "dv");
    if (::testing::Test::HasFatalFailure()) return;
    near(dk, want.dk, want.dk_size, "dk");
    if (::testing::Test::HasFatalFailure()) return;
    near(dq, want.dq, want.dq_size, "dq");
  }
};

template <class T> void expect_gradients(Problem<T>& p, double tolerance) {
  p.forward();
  Backward<T> b(p);
  Attention::backward(p.s, Grad(b.dq.tensor, Write::overwrite), Grad(b.dk.tensor, Write::overwrite),
                      Grad(b.dv.tensor, Write::overwrite), p.there[0].tensor, p.there[1].tensor, p.there[2].tensor,
                      p.out.tensor, p.lse.tensor, b.there.tensor, b.scratch.tensor, p.args);
  b.expect_right(tolerance);
}

/// check(problem) for every problem of elements T.
template <class T, class F> void for_each_problem(Stream& s, F&& check) {
  std::vector<Case> cases = {{70, 133, 2, 1, 16},        {100, 100, 2, 2, 64}, {130, 200, 1, 1, 128, false},
                             {1, 300, 4, 2, 64},         {1, 700, 3, 3, 128},  {3, 9, 1, 1, 8},
                             {130, 130, 4, 2, 96, false}};
  if (s.device().is_cuda())
    cases.insert(cases.end(), {{150, 150, 2, 1, 144},
                               {130, 256, 2, 2, 192, false},
                               {256, 256, 2, 1, 256},
                               {70, 70, 2, 2, 40},
                               {40, 40, 2, 1, 27}});
  for (const Case& c : cases)
    for (int pattern = 0; pattern < (std::is_same_v<T, f16> ? kPatternsOf16Bits : kPatterns); ++pattern) {
      SCOPED_TRACE(std::to_string(c.queries) + " queries, " + std::to_string(c.keys) + " keys, width " +
                   std::to_string(c.width) + ", pattern " + std::to_string(pattern) + ", " +
                   to_string(Spec{{c.width}, dtype_of<T>}));
      Problem<T> p(s, c, pattern);
      check(p);
      if (::testing::Test::HasFatalFailure()) return;
    }
}

TEST(FarScores, AreRightOnEveryInstructionSet) {
  Pool pool(2);
  StepParams params;
  Stream s(pool, &params);
  testing::for_each_isa([&] {
    for_each_problem<float>(s, [](Problem<float>& p) { p.forward(), p.expect_right(1e-5); });
    for_each_problem<bf16>(s, [](Problem<bf16>& p) { p.forward(), p.expect_right(0x1p-7); });
  });
}

TEST(FarScores, GradientsAreRightOnEveryInstructionSet) {
  Pool pool(2);
  StepParams params;
  Stream s(pool, &params);
  testing::for_each_isa([&] {
    for_each_problem<float>(s, [](Problem<float>& p) { expect_gradients(p, 1e-3); });
    for_each_problem<bf16>(s, [](Problem<bf16>& p) { expect_gradients(p, 0x1p-6); });
  });
}

#if HPCDL_CUDA
TEST(FarScores, AreRightInEveryWayOfAGpu) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  StepParams params;
  Stream s(Device::cuda(0), pool, &params);
  const auto in_every_way = [&](auto& p) {
    p.forward(), p.expect_right(1e-2);
    const cuda::Attend call{p.out.tensor,     p.lse.tensor, p.there[0].tensor, p.there[1].tensor, p.there[2].tensor,
                            p.scratch.tensor, p.args};
    const auto ways = cuda::attention_candidates(s, call);
    for (const auto& way : std::vector<cuda::AttentionCandidate>(ways.begin(), ways.end())) {
      SCOPED_TRACE(std::string(way.name));
      cuda::attention_with(s, call, way.id);
      p.expect_right(1e-2);
      if (::testing::Test::HasFatalFailure()) return;
    }
  };
  for_each_problem<float>(s, in_every_way);
  for_each_problem<bf16>(s, in_every_way);
  for_each_problem<f16>(s, in_every_way);
}

TEST(FarScores, GradientsAreRightInEveryWayOfAGpu) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  StepParams params;
  Stream s(Device::cuda(0), pool, &params);
  const auto in_every_way = [&](auto& p, double tolerance) {
    p.forward();
    Backward b(p);
    const cuda::AttendBackward call{
        {p.out.tensor, p.lse.tensor, p.there[0].tensor, p.there[1].tensor, p.there[2].tensor, b.scratch.tensor, p.args},
        Grad(b.dq.tensor, Write::overwrite),
        Grad(b.dk.tensor, Write::overwrite),
        Grad(b.dv.tensor, Write::overwrite),
        b.there.tensor};
    const auto ways = cuda::attention_candidates(s, call);
    for (const auto& way : std::vector<cuda::AttentionCandidate>(ways.begin(), ways.end())) {
      SCOPED_TRACE(std::string(way.name));
      cuda::attention_with(s, call, way.id);
      b.expect_right(tolerance);
      if (::testing::Test::HasFatalFailure()) return;
    }
  };
  for_each_problem<float>(s, [&](auto& p) { in_every_way(p, 1e-3); });
  for_each_problem<bf16>(s, [&](auto& p) { in_every_way(p, 0x1p-6); });
  for_each_problem<f16>(s, [&](auto& p) { in_every_way(p, 0x1p-8); });
}
#endif

}  // namespace
}  // namespace hpcdl
