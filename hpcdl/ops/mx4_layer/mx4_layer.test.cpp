// Rounding to MXFP4 against the codec of files and naive references in double, and the gradients of a layer against exact
// ones, which they equal on average.

#include "hpcdl/ops/mx4_layer/mx4_layer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "hpcdl/core/element.h"
#include "hpcdl/core/error.h"
#include "hpcdl/core/tolerance.h"
#include "hpcdl/graph.h"
#include "hpcdl/instance.h"
#include "hpcdl/testing/every_isa.h"

namespace hpcdl {
namespace {

constexpr int kGroup = kMxBlock;
using Group = std::array<double, kGroup>;

OwnedTensor drawn(const Spec& spec, std::uint64_t stream, double spread = 0) {
  OwnedTensor t(spec);
  for (std::int64_t i = 0; i < spec.size(); ++i) {
    const auto at = static_cast<std::uint64_t>(i);
    set_element(t.tensor, i, Rng{11, stream}.normal(at) * std::exp(spread * Rng{12, stream}.normal(at)));
  }
  return t;
}

OwnedTensor projected(const Tensor& x, const Mx4Project::Args& a, int threads = 2) {
  Pool pool(threads);
  Stream s(pool);
  OwnedTensor q(x.spec());
  Mx4Project::forward(s, q.tensor, x, a);
  return q;
}

/// Element i of group g.
std::int64_t place(const Tensor& x, bool along_rows, std::int64_t g, int i) {
  const auto cols = x.cols();
  return along_rows ? (g / cols * kGroup + i) * cols + g % cols : g * kGroup + i;
}
Group group_of(const Tensor& x, bool along_rows, std::int64_t g) {
  Group v{};
  for (int i = 0; i < kGroup; ++i) v[static_cast<std::size_t>(i)] = element(x, place(x, along_rows, g, i));
  return v;
}

Group rotated(const Group& x, std::uint32_t signs = 0) {
  Group y{};
  for (unsigned i = 0; i < kGroup; ++i)
    for (unsigned j = 0; j < kGroup; ++j)
      y[i] += (std::popcount(i & j) % 2 ? -1 : 1) * (signs >> j & 1 ? -x[j] : x[j]) / std::sqrt(double{kGroup});
  return y;
}

double nearest(double x, double scale) { return double{kE2m1Values[to_e2m1(static_cast<float>(x / scale))]} * scale; }

double squared_error(const Group& v, double scale) {
  double sum = 0;
  for (const double x : v) sum += (x - nearest(x, scale)) * (x - nearest(x, scale));
  return sum;
}

/// Of the scale of the specification, half and twice of it.
double best_scale(const Group& v) {
  double largest = 0;
  for (const double x : v) largest = std::fmax(largest, std::fabs(x));
  const double given = double{from_e8m0(e8m0_scale(static_cast<float>(largest)))};
  double best = given;
  for (const double factor : {0.5, 2.0})
    if (squared_error(v, given * factor) < squared_error(v, best)) best = given * factor;
  return best;
}

/// Every number of bf16, in groups of neighbours and of numbers far apart.
TEST(mx4, rounds_every_number_as_the_codec_of_files_does) {
  const OwnedTensor x({{2 * 65536 / kGroup, kGroup}, DType::bf16});
  for (std::uint32_t i = 0; i < 65536; ++i) {
    x.tensor.ptr<bf16>()[i].bits = static_cast<std::uint16_t>(i);
    x.tensor.ptr<bf16>()[65536 + i].bits = static_cast<std::uint16_t>(i * 8209);  // a permutation
  }
  testing::for_each_isa([&] {
    for (const auto type : {DType::bf16, DType::f32}) {
      const OwnedTensor in({x.tensor.shape(), type});
      for (std::int64_t i = 0; i < in.tensor.size(); ++i) set_element(in.tensor, i, element(x.tensor, i));
      const auto q = projected(in.tensor, {.method = Mx4Method::plain});
      for (std::int64_t g = 0; g < in.tensor.rows(); ++g) {
        float largest = 0;
        bool finite = true;
        for (const double v : group_of(in.tensor, false, g))
          finite &= std::isfinite(v), largest = std::fmax(largest, static_cast<float>(std::fabs(v)));
        for (int i = 0; i < kGroup; ++i) {
          const double v = element(in.tensor, g * kGroup + i), got = element(q.tensor, g * kGroup + i);
          const double scale = std::fmax(double{from_e8m0(e8m0_scale(largest))}, 0x1p-100);  // no smaller ones
          ASSERT_TRUE(std::isfinite(v) ? !finite || got == nearest(v, scale) : std::isnan(got))
              << g << " " << i << " " << v << " " << got;
        }
      }
    }
  });
}

struct Matrix {
  Shape shape;
  bool along_rows;
};
const Matrix kMatrices[] = {{{3, 32}, false},  {{5, 352}, false}, {{2, 3, 64}, false},
                            {{70, 64}, false}, {{32, 1}, true},   {{96, 7}, true},
                            {{64, 65}, true},  {{64, 200}, true}, {{0, 32}, false}};

/// The values of a group are of a scale of which none of its neighbours is better, and each is the nearest one.
TEST(mx4, projects_rotated_groups_with_the_best_scale) {
  testing::for_each_isa([] {
    for (const auto& [shape, along_rows] : kMatrices)
      for (const auto type : {DType::f32, DType::bf16}) {
        const auto x = drawn({shape, type}, 3, 1);
        const auto q = projected(x.tensor, {.along_rows = along_rows});
        for (std::int64_t g = 0; g < x.tensor.size() / kGroup; ++g) {
          SCOPED_TRACE(fmt::format("{} group {} {}", shape[0], g, along_rows));
          const auto h = rotated(group_of(x.tensor, along_rows, g)), got = group_of(q.tensor, along_rows, g);
          const double best = squared_error(h, best_scale(h));
          double error = 0;
          for (std::size_t i = 0; i < kGroup; ++i) error += (h[i] - got[i]) * (h[i] - got[i]);
          ASSERT_NEAR(error, best, 1e-4 * best);
          bool of_one_scale = false;
          for (const double factor : {0.5, 1.0, 2.0}) {
            bool all = true;
            for (const double v : got) all &= nearest(v, best_scale(h) * factor) == v;
            of_one_scale |= all;
          }
          ASSERT_TRUE(of_one_scale);
        }
      }
  });
}

TEST(mx4, gradients_come_back_where_rounding_is_trusted) {
  testing::for_each_isa([] {
    for (const auto& [shape, along_rows] : kMatrices) {
      const auto x = drawn({shape, DType::f32}, 3, 1), dq = drawn({shape, DType::f32}, 4);
      const Mx4Project::Args a{.along_rows = along_rows};
      Pool pool(2);
      Stream s(pool);
      const OwnedTensor dx(x.tensor.spec());
      Mx4Project::backward(s, Grad(dx.tensor, Write::overwrite), x.tensor, dq.tensor, a);
      int clipped = 0;
      for (std::int64_t g = 0; g < x.tensor.size() / kGroup; ++g) {
        const auto h = rotated(group_of(x.tensor, along_rows, g));
        auto d = group_of(dq.tensor, along_rows, g);
        const double scale = best_scale(h);
        bool near = false;
        for (std::size_t i = 0; i < kGroup; ++i) {
          const double beyond = std::fabs(h[i]) / scale - 7;
          near |= std::fabs(beyond) < 1e-4;
          if (beyond > 0) d[i] = 0, ++clipped;
        }
        if (near) continue;
        const auto want = rotated(d), is = group_of(dx.tensor, along_rows, g);
        for (std::size_t i = 0; i < kGroup; ++i) ASSERT_NEAR(is[i], want[i], 1e-5) << g << " " << i;
      }
      EXPECT_TRUE(clipped > 0 || shape.size() < 10000);
      // Added to what is there.
      const OwnedTensor sum(x.tensor.spec());
      std::memcpy(sum.tensor.data(), dx.tensor.data(), static_cast<std::size_t>(dx.tensor.bytes()));
      Mx4Project::backward(s, Grad(sum.tensor, Write::accumulate), x.tensor, dq.tensor, a);
      for (std::int64_t i = 0; i < dx.tensor.size(); ++i)
        ASSERT_EQ(sum.tensor.ptr<float>()[i], 2 * dx.tensor.ptr<float>()[i]);
      Mx4Project::backward(s, Grad(sum.tensor, Write::overwrite), x.tensor, dq.tensor,
                           {.method = Mx4Method::plain, .along_rows = along_rows});
      EXPECT_TRUE(sum.tensor.size() == 0 ||
                  std::memcmp(sum.tensor.data(), dq.tensor.data(), static_cast<std::size_t>(sum.tensor.bytes())) == 0)
          << "plain rounding passes gradients on";
    }
  });
}

OwnedTensor rounded(const Tensor& x, Mx4Round::Args a, std::int64_t step, int threads = 2) {
  Pool pool(threads);
  StepParams params;
  params.seed = 5, params.step = step;
  Stream s(pool, &params);
  OwnedTensor q(x.spec());
  const Grad operands[] = {Grad(q.tensor, Write::overwrite), Grad(x, Write::overwrite)};
  Mx4Round::run(s, operands, &a);
  return q;
}

TEST(mx4, rounding_at_random_is_right_on_average) {
  constexpr int kSteps = 600;
  for (const auto& [shape, along_rows] : {Matrix{{2, 96}, false}, Matrix{{64, 3}, true}}) {
    const auto x = drawn({shape, DType::f32}, 7, 1);
    const Mx4Round::Args a{.along_rows = along_rows, .signs = 1, .draws = 2};
    std::vector<Group> sum(static_cast<std::size_t>(x.tensor.size() / kGroup)), square = sum;
    for (int step = 0; step < kSteps; ++step) {
      const auto q = rounded(x.tensor, a, step);
      const auto signs = Rng{5, 1 ^ (static_cast<std::uint64_t>(step) << 32)}.bits(0);
      for (std::size_t g = 0; g < sum.size(); ++g) {
        const auto v = group_of(q.tensor, along_rows, static_cast<std::int64_t>(g));
        const auto back = rotated(v);  // then the signs are undone
        for (std::size_t i = 0; i < kGroup; ++i) {
          const double one = signs >> i & 1 ? -back[i] : back[i];
          sum[g][i] += one / kSteps, square[g][i] += one * one / kSteps;
        }
      }
    }
    for (std::size_t g = 0; g < sum.size(); ++g) {
      const auto want = group_of(x.tensor, along_rows, static_cast<std::int64_t>(g));
      for (std::size_t i = 0; i < kGroup; ++i) {
        const double deviation = std::sqrt((square[g][i] - sum[g][i] * sum[g][i]) / kSteps);
        ASSERT_NEAR(sum[g][i], want[i], 5 * deviation + 1e-6) << g << " " << i;
        ASSERT_GT(deviation, 0) << "it draws";
      }
    }
  }
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.spec() == b.spec() && std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.bytes())) == 0;
}

TEST(mx4, draws_depend_on_the_step_and_the_part_alone) {
  testing::for_each_isa([] {
    const auto x = drawn({{128, 160}, DType::bf16}, 9, 1);
    for (const bool along_rows : {false, true}) {
      const Mx4Round::Args a{.along_rows = along_rows, .signs = 1, .draws = 2};
      const auto one = rounded(x.tensor, a, 3, 1);
      EXPECT_TRUE(same_bits(one.tensor, rounded(x.tensor, a, 3, 3).tensor));
      EXPECT_FALSE(same_bits(one.tensor, rounded(x.tensor, a, 4).tensor));
      auto other = a;
      other.draws = 3;
      EXPECT_FALSE(same_bits(one.tensor, rounded(x.tensor, other, 3).tensor));
      // Half of the rows, as the second rank of two has them.
      const Spec half{{64, 160}, DType::bf16};
      auto second = a;
      second.part = 1;
      const auto mine = rounded(Tensor(x.tensor.ptr<bf16>() + 64 * 160, half), second, 3);
      EXPECT_TRUE(same_bits(mine.tensor, Tensor(one.tensor.ptr<bf16>() + 64 * 160, half)));
    }
  });
}

TEST(mx4, numbers_that_are_not_finite_are_not_hidden) {
  testing::for_each_isa([] {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      const auto x = drawn({{2, 64}, DType::f32}, 1);
      x.tensor.ptr<float>()[40] = bad;
      const auto q = projected(x.tensor, {}), r = rounded(x.tensor, {.signs = 1, .draws = 2}, 1);
      for (std::int64_t i = 0; i < 128; ++i)
        for (const auto* t : {&q, &r}) ASSERT_EQ(std::isnan(element(t->tensor, i)), i / kGroup == 1) << i;
    }
  });
}

/// A layer and its gradients in a program.
struct Layer {
  OwnedTensor x, w, bias, residual, dy, dx, dw, dbias, dresidual, y;
  StepParams params;
  std::unique_ptr<Instance> exe;
  Var out;

  Layer(std::int64_t m, std::int64_t n, std::int64_t k, const Mx4Layer::Args& a, Write write = Write::overwrite)
      : x(drawn({{m, k}, DType::bf16}, 1)),
        w(drawn({a.conv1d ? Shape{k, n} : Shape{n, k}, DType::f32}, 2)),
        bias(drawn({{n}, DType::f32}, 3)),
        residual(drawn({{m, n}, DType::bf16}, 4)),
        dy(drawn({{m, n}, DType::bf16}, 5)),
        dx(x.tensor.spec()),
        dw(w.tensor.spec()),
        dbias(bias.tensor.spec()),
        dresidual(residual.tensor.spec()) {
    for (auto* t : {&dx, &dw, &dbias, &dresidual})
      std::memset(t->tensor.data(), 0, static_cast<std::size_t>(t->tensor.bytes()));
    Graph g({.parameter_gradients = write});
    const Var vw = g.parameter("w", w.tensor, dw.tensor);
    out = g.keep(mx4_layer(mx4_project(g.parameter("x", x.tensor, dx.tensor), {.method = a.method}),
                           mx4_project(vw, {a.method, a.conv1d}), g.parameter("b", bias.tensor, dbias.tensor),
                           g.parameter("r", residual.tensor, dresidual.tensor), a));
    g.backward(out, g.constant("dy", dy.tensor));
    exe = std::make_unique<Instance>(g.finish());
  }
  void run(std::int64_t step) {
    Pool pool(2);
    params.seed = 1, params.step = step;
    Stream s(pool, &params);
    exe->run(s);
  }
};

TEST(mx4, a_layer_multiplies_projected_operands) {
  for (const bool conv1d : {false, true})
    for (const auto method : {Mx4Method::quest, Mx4Method::plain}) {
      Layer l(64, 96, 160, {.method = method, .conv1d = conv1d});
      l.run(0);
      const auto qx = projected(l.x.tensor, {.method = method}), qw = projected(l.w.tensor, {method, conv1d});
      const auto y = l.exe->tensor(l.out);
      for (std::int64_t i = 0; i < 64; ++i)
        for (std::int64_t j = 0; j < 96; ++j) {
          double sum = element(l.bias.tensor, j) + element(l.residual.tensor, i * 96 + j), magnitude = std::fabs(sum);
          for (std::int64_t k = 0; k < 160; ++k) {
            const double term = element(qx.tensor, i * 160 + k) * element(qw.tensor, conv1d ? k * 96 + j : j * 160 + k);
            sum += term, magnitude += std::fabs(term);
          }
          ASSERT_NEAR(element(y, i * 96 + j), sum, allowed_error(DType::bf16, std::fabs(sum), 162, magnitude));
        }
      EXPECT_TRUE(same_bits(l.dresidual.tensor, l.dy.tensor));
    }
}

/// The gradient of qw is dy^T qx, and that of qx is dy qw; what has been clipped has none.
TEST(mx4, gradients_of_a_layer_are_right_on_average) {
  constexpr int kSteps = 400;
  constexpr std::int64_t kM = 32, kN = 64, kK = 96;
  for (const bool conv1d : {false, true}) {
    Layer l(kM, kN, kK, {.conv1d = conv1d});
    std::vector<double> dx(kM * kK), dw(kN * kK), dx2 = dx, dw2 = dw;
    for (int step = 0; step < kSteps; ++step) {
      l.run(step);
      for (const auto& [of, sum, square] : {std::tuple{&l.dx, &dx, &dx2}, {&l.dw, &dw, &dw2}})
        for (std::size_t i = 0; i < sum->size(); ++i) {
          const double v = element(of->tensor, static_cast<std::int64_t>(i));
          (*sum)[i] += v / kSteps, (*square)[i] += v * v / kSteps;
        }
    }
    const auto qx = projected(l.x.tensor, {}), qw = projected(l.w.tensor, {.along_rows = conv1d});
    const OwnedTensor dqx(Spec{l.x.tensor.shape(), DType::f32}), dqw(l.w.tensor.spec()), want_x(dqx.tensor.spec()),
        want_w(dqw.tensor.spec()), x32(dqx.tensor.spec());
    const auto w_at = [&](std::int64_t n, std::int64_t k) { return conv1d ? k * kN + n : n * kK + k; };
    for (std::int64_t i = 0; i < kM; ++i)
      for (std::int64_t k = 0; k < kK; ++k) {
        double sum = 0;
        for (std::int64_t n = 0; n < kN; ++n) sum += element(l.dy.tensor, i * kN + n) * element(qw.tensor, w_at(n, k));
        set_element(dqx.tensor, i * kK + k, sum), set_element(x32.tensor, i * kK + k, element(l.x.tensor, i * kK + k));
      }
    for (std::int64_t n = 0; n < kN; ++n)
      for (std::int64_t k = 0; k < kK; ++k) {
        double sum = 0;
        for (std::int64_t i = 0; i < kM; ++i) sum += element(l.dy.tensor, i * kN + n) * element(qx.tensor, i * kK + k);
        set_element(dqw.tensor, w_at(n, k), sum);
      }
    Pool pool(1);
    Stream s(pool);
    Mx4Project::backward(s, Grad(want_x.tensor, Write::overwrite), x32.tensor, dqx.tensor, {});
    Mx4Project::backward(s, Grad(want_w.tensor, Write::overwrite), l.w.tensor, dqw.tensor, {.along_rows = conv1d});
    for (const auto& [want, mean, square] : {std::tuple{&want_x, &dx, &dx2}, {&want_w, &dw, &dw2}})
      for (std::size_t i = 0; i < mean->size(); ++i) {
        const double deviation = std::sqrt(std::fmax(0, (*square)[i] - (*mean)[i] * (*mean)[i]) / kSteps),
                     exact = element(want->tensor, static_cast<std::int64_t>(i));
        // dx is rounded to bf16 in each step, before and after it is rotated back.
        ASSERT_NEAR((*mean)[i], exact, 5.5 * deviation + 0.02) << conv1d << " " << i;
      }
  }
}

TEST(mx4, gradients_accumulate) {
  Layer once(32, 64, 32, {}), twice(32, 64, 32, {}, Write::accumulate);
  once.run(3), twice.run(3), twice.run(3);
  for (const auto& [a, b] : {std::pair{&once.dw, &twice.dw}, {&once.dbias, &twice.dbias}})
    for (std::int64_t i = 0; i < a->tensor.size(); ++i)
      ASSERT_EQ(element(b->tensor, i), 2 * element(a->tensor, i)) << i;
}

TEST(mx4, refuses_what_is_no_group) {
  const auto error = [](const std::function<void()>& f) -> std::string {
    try {
      f();
    } catch (const Error& e) {
      return e.what();
    }
    return "none";
  };
  EXPECT_NE(error([] { Mx4Project::infer({{4, 48}, DType::f32}, {}); }).find("columns must be groups of 32, got 48"),
            std::string::npos);
  EXPECT_NE(error([] { Mx4Project::infer({{48, 4}, DType::f32}, {.along_rows = true}); }).find("rows must be groups"),
            std::string::npos);
  EXPECT_NE(error([] {
              Mx4Layer::infer({{16, 64}, DType::bf16}, {{32, 64}, DType::f32}, {}, {}, {});
            }).find("must be multiples of 32, got 16, 64 and 32"),
            std::string::npos);
  EXPECT_EQ(error([] { Mx4Layer::infer({{32, 64}, DType::bf16}, {{32, 64}, DType::f32}, {}, {}, {}); }), "none");
}

}  // namespace
}  // namespace hpcdl
