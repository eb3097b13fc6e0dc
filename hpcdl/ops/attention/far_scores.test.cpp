// Scores far from 0, as masks of -1e10 and -1e30 make them: whatever a float holds is an ordinary score. Every way to
// compute attention forward, on every instruction set and on a GPU, and its gradients on every instruction set, against
// loops in double. Only the first element of queries and keys is not 0, so that scores are exact.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "hpcdl/core/buffer.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/core/rng.h"
#include "hpcdl/ops/attention/attention.h"
#include "hpcdl/ops/attention/device_attention.h"
#include "hpcdl/testing/every_isa.h"

namespace hpcdl {
namespace {

constexpr int kPatterns = 6;

/// The first element of key j of n. Half of 3e38 is left to the scale and to what is computed on pairs of 16 bits.
double key_element(int pattern, std::int64_t j, std::int64_t n) {
  const double ordinary = static_cast<double>(j * 7919 % 97) / 32;
  switch (pattern) {
    case 0: return -1e10;
    case 1: return -1e30;
    case 2: return j == n / 3 ? ordinary : -1e10;
    case 3: return j < n - n / 4 ? -1e30 : ordinary;
    case 4: return j % 2 == 0 ? -1e10 : -1e38;
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

  /// Of values within [-1, 1].
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

/// The gradient of the values, which shows every probability: dout is 1 for one query and element at a time.
template <class T> void expect_gradients(Problem<T>& p, double tolerance) {
  const Case& c = p.c;
  p.forward();
  OwnedTensor dout(p.q.tensor.spec()), dq(p.q.tensor.spec()), dk(p.k.tensor.spec()), dv(p.v.tensor.spec()),
      scratch(Attention::backward_scratch(p.q.tensor.spec(), p.k.tensor.spec(), p.v.tensor.spec(), p.args)[0]);
  const auto get = [](const OwnedTensor& x, std::int64_t i) {
    return static_cast<double>(static_cast<float>(x.tensor.template ptr<T>()[i]));
  };
  for (std::int64_t i = 0; i < dout.tensor.size(); ++i)
    dout.tensor.template ptr<T>()[i] = T(static_cast<float>(Rng{6}.uniform(static_cast<std::uint64_t>(i)) * 2 - 1));
  Attention::backward(p.s, Grad(dq.tensor, Write::overwrite), Grad(dk.tensor, Write::overwrite),
                      Grad(dv.tensor, Write::overwrite), p.q.tensor, p.k.tensor, p.v.tensor, p.out.tensor, p.lse.tensor,
                      dout.tensor, scratch.tensor, p.args);
  const std::int64_t width = c.width;
  std::vector<double> want_dv(static_cast<std::size_t>(p.v.tensor.size())), size(want_dv.size());
  std::vector<double> e(static_cast<std::size_t>(c.keys));
  for (std::int64_t t = 0; t < c.queries; ++t)
    for (int h = 0; h < c.heads; ++h) {
      const std::int64_t g = h * c.kv_heads / c.heads, seen = c.causal ? t + c.keys - c.queries + 1 : c.keys,
                         row = (t * c.heads + h) * width;
      double top = -INFINITY, sum = 0;
      for (std::int64_t j = 0; j < seen; ++j) {
        e[static_cast<std::size_t>(j)] = 0.25 * get(p.q, row) * get(p.k, (j * c.kv_heads + g) * width);
        top = std::max(top, e[static_cast<std::size_t>(j)]);
      }
      for (std::int64_t j = 0; j < seen; ++j)
        sum += e[static_cast<std::size_t>(j)] = std::exp(e[static_cast<std::size_t>(j)] - top);
      for (std::int64_t j = 0; j < seen; ++j)
        for (std::int64_t i = 0; i < width; ++i) {
          const auto at = static_cast<std::size_t>((j * c.kv_heads + g) * width + i);
          const double part = e[static_cast<std::size_t>(j)] / sum * get(dout, row + i);
          want_dv[at] += part, size[at] += std::fabs(part);
        }
    }
  for (std::size_t i = 0; i < want_dv.size(); ++i)
    ASSERT_NEAR(get(dv, static_cast<std::int64_t>(i)), want_dv[i], tolerance * (1e-2 + size[i])) << "element " << i;
}

/// check(problem) for every problem of elements T.
template <class T, class F> void for_each_problem(Stream& s, F&& check) {
  for (const Case& c : {Case{70, 133, 2, 1, 16}, Case{100, 100, 2, 2, 64}, Case{130, 200, 1, 1, 128, false},
                        Case{1, 300, 4, 2, 64}, Case{1, 700, 3, 3, 128}, Case{3, 9, 1, 1, 8}})
    for (int pattern = 0; pattern < kPatterns; ++pattern) {
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
      if (way.name.starts_with("cudnn")) continue;  // not ours to mend
      SCOPED_TRACE(std::string(way.name));
      cuda::attention_with(s, call, way.id);
      p.expect_right(1e-2);
      if (::testing::Test::HasFatalFailure()) return;
    }
  };
  for_each_problem<float>(s, in_every_way);
  for_each_problem<bf16>(s, in_every_way);
}
#endif

}  // namespace
}  // namespace hpcdl
