// A layer and its gradients against products, in double, of what the casts of its operands stand for.

#include "hpcdl/ops/fp8_layer/fp8_layer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/core/element.h"
#include "hpcdl/core/error.h"
#include "hpcdl/core/tolerance.h"
#include "hpcdl/graph.h"
#include "hpcdl/instance.h"
#include "hpcdl/ops/fp8_linear/fp8_linear.spec.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/devices.h"

namespace hpcdl {
namespace {

struct Case {
  std::int64_t m, n, k;
  Fp8Scaling scaling = Fp8Scaling::tensor;
  bool conv1d = false, delayed = false;
};
const Case kCases[] = {
    {16, 16, 16},
    {48, 80, 32, Fp8Scaling::row},
    {160, 144, 272, Fp8Scaling::tensor, true},
    {32, 48, 64, Fp8Scaling::row, true},
    {64, 272, 144, Fp8Scaling::tensor, false, true},
    {144, 32, 48, Fp8Scaling::tensor, true, true},
};

OwnedTensor drawn(const Spec& spec, std::uint64_t stream) {
  OwnedTensor t(spec);
  for (std::int64_t i = 0; i < spec.size(); ++i)
    set_element(t.tensor, i, Rng{11, stream}.normal(static_cast<std::uint64_t>(i)));
  return t;
}

/// A matrix of the numbers that a cast of `x` to 8 bits stands for.
struct Numbers {
  std::vector<double> v;
  std::int64_t cols;
  double operator()(std::int64_t r, std::int64_t c) const { return v[static_cast<std::size_t>(r * cols + c)]; }
};
Numbers numbers(const Tensor& x, DType to, Fp8Scaling scaling, bool turned, const Tensor& history, int column) {
  Pool pool(1);
  Stream s(pool);
  const Fp8Cast::Args a{to, scaling, true, column};
  const auto specs = Fp8Cast::infer(x.spec(), history ? history.spec() : Spec(), a);
  const OwnedTensor q(specs[0]), qt(specs[1]), scales(specs[2]), amax(specs[3]);
  Fp8Cast::forward(s, q.tensor, qt.tensor, scales.tensor, amax.tensor, x, history, a);
  const Tensor& from = turned ? qt.tensor : q.tensor;
  Numbers list{{}, from.cols()};
  for (std::int64_t i = 0; i < from.size(); ++i) {
    const std::int64_t at = scaling != Fp8Scaling::row ? 0 : i / from.cols() + (turned ? x.rows() : 0);
    list.v.push_back(element(from, i) * static_cast<double>(scales.tensor.ptr<float>()[at]));
  }
  return list;
}

/// Compares `got` (rows of a, rows of b) with a b^T + what add(i, j) says.
template <class Add>
void expect_product(const char* what, const Tensor& got, const Numbers& a, const Numbers& b, bool gpu, Add add) {
  int wrong = 0;
  for (std::int64_t i = 0; i < got.rows(); ++i)
    for (std::int64_t j = 0; j < got.cols(); ++j) {
      double sum = 0, magnitude = 0;
      contract::Fp8BlockLoss lost;
      for (std::int64_t l = 0; l < a.cols; ++l) {
        const double term = a(i, l) * b(j, l);
        sum += term, magnitude += std::fabs(term), lost.add(l, term);
      }
      const double more = add(i, j), want = sum + more;
      const double bound =
          allowed_error(got.dtype(), std::fabs(want), static_cast<double>(a.cols + 2), magnitude + std::fabs(more)) +
          (gpu ? lost.loss + 33 * 0x1p-13 * lost.largest : 0);
      wrong += !(std::fabs(element(got, i * got.cols() + j) - want) <= bound);
    }
  EXPECT_EQ(wrong, 0) << what << " of " << got.size();
}

class Fp8LayerOn : public ::testing::TestWithParam<Device> {};
INSTANTIATE_TEST_SUITE_P(fp8_layer, Fp8LayerOn, ::testing::ValuesIn(testing::devices()), testing::device_kind);

TEST_P(Fp8LayerOn, products_and_gradients_are_those_of_the_casts) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(fmt::format("{}x{}x{} {} {} {}", c.m, c.n, c.k, static_cast<int>(c.scaling), c.conv1d, c.delayed));
    const Device device = GetParam();
    Pool pool(2);
    StepParams params;
    Stream s(device, pool, &params);
    const OwnedTensor x = drawn({{c.m, c.k}, DType::bf16}, 1),
                      w = drawn({c.conv1d ? Shape{c.k, c.n} : Shape{c.n, c.k}, DType::f32}, 2),
                      bias = drawn({{c.n}, DType::f32}, 3), residual = drawn({{c.m, c.n}, DType::bf16}, 4),
                      dy = drawn({{c.m, c.n}, DType::bf16}, 5);
    OwnedTensor history(amax_history_spec(6));
    for (std::int64_t i = 0; i < history.tensor.size(); ++i)
      history.tensor.ptr<float>()[i] = i < 6 ? 0 : 1 + static_cast<float>(i % 6) / 2;
    const Tensor known = c.delayed ? history.tensor : Tensor();

    std::vector<OwnedTensor> there;
    there.reserve(16);
    const auto put = [&](const Spec& spec, const OwnedTensor* from = nullptr) {
      there.emplace_back(spec, device);
      if (from) copy(s, there.back().tensor, from->tensor);
      return there.back().tensor;
    };
    Graph g;
    const auto parameter = [&](const char* name, const OwnedTensor& value) {
      const Tensor there_value = put(value.tensor.spec(), &value);
      return g.parameter(name, there_value, put(value.tensor.spec()));
    };
    const Var vx = parameter("x", x), vw = parameter("w", w), vb = parameter("bias", bias),
              vr = parameter("residual", residual), vdy = g.constant("dy", put(dy.tensor.spec(), &dy)),
              vh = c.delayed ? g.constant("history", put(history.tensor.spec(), &history)) : Var();
    const auto operand = [&](const Var& v, int column) {
      return fp8_operand(g, v, {.scaling = c.scaling, .column = 3 + column}, vh);
    };
    const auto qw = operand(vw, 1);
    const Var y = g.keep(fp8_layer(vx, vw, vb, vr, operand(vx, 0), c.conv1d ? qw.transposed() : qw, vh,
                                   {.scaling = c.scaling, .conv1d = c.conv1d, .layer = 1}));
    g.backward(y, vdy);
    Instance exe(g.finish(), nullptr, device);
    exe.run(s);
    const auto back = [&](const Tensor& from) {
      OwnedTensor host(from.spec());
      copy(s, host.tensor, from);
      s.synchronize();
      return host;
    };
    const auto of = [&](const OwnedTensor& t, DType to, bool turned, int column) {
      return numbers(t.tensor, to, c.scaling, turned, known, 3 + column);
    };
    const bool gpu = device.is_cuda();
    const DType e4m3 = DType::f8_e4m3, e5m2 = DType::f8_e5m2;
    const Numbers qx = of(x, e4m3, false, 0), qxt = of(x, e4m3, true, 0), w_out = of(w, e4m3, c.conv1d, 1),
                  w_in = of(w, e4m3, !c.conv1d, 1), qdy = of(dy, e5m2, false, 2), qdyt = of(dy, e5m2, true, 2);
    const auto nothing = [](std::int64_t, std::int64_t) { return 0.0; };
    expect_product("y", back(exe.tensor(y)).tensor, qx, w_out, gpu, [&](std::int64_t i, std::int64_t j) {
      return element(bias.tensor, j) + element(residual.tensor, i * c.n + j);
    });
    expect_product("dx", back(there[1].tensor).tensor, qdy, w_in, gpu, nothing);
    const OwnedTensor dw = back(there[3].tensor);
    if (c.conv1d) expect_product("dw", dw.tensor, qxt, qdyt, gpu, nothing);
    else expect_product("dw", dw.tensor, qdyt, qxt, gpu, nothing);
    const OwnedTensor dbias = back(there[5].tensor), dresidual = back(there[7].tensor);
    EXPECT_EQ(std::memcmp(dresidual.tensor.data(), dy.tensor.data(), static_cast<std::size_t>(dy.tensor.bytes())), 0);
    for (std::int64_t j = 0; j < c.n; ++j) {
      double sum = 0, magnitude = 0;
      for (std::int64_t i = 0; i < c.m; ++i)
        sum += element(dy.tensor, i * c.n + j), magnitude += std::fabs(element(dy.tensor, i * c.n + j));
      ASSERT_NEAR(element(dbias.tensor, j), sum,
                  allowed_error(DType::f32, std::fabs(sum), static_cast<double>(c.m), magnitude));
    }
    if (!c.delayed) continue;
    const OwnedTensor after = back(there[9].tensor);
    for (int i = 0; i < 3; ++i) {
      double most = 0;
      const OwnedTensor& t = i == 0 ? x : i == 1 ? w : dy;
      for (std::int64_t k = 0; k < t.tensor.size(); ++k) most = std::fmax(most, std::fabs(element(t.tensor, k)));
      EXPECT_EQ(static_cast<double>(after.tensor.ptr<float>()[3 + i]), most);
      EXPECT_EQ(after.tensor.ptr<float>()[i], 0) << "of another layer";
    }
  }
}

/// Two layers read one tensor, and two passes add to one gradient.
TEST_P(Fp8LayerOn, gradients_accumulate) {
  const Device device = GetParam();
  Pool pool(2);
  StepParams params;
  Stream s(device, pool, &params);
  const OwnedTensor x = drawn({{32, 48}, DType::bf16}, 1), w = drawn({{64, 48}, DType::f32}, 2),
                    dy = drawn({{32, 64}, DType::bf16}, 3);
  OwnedTensor there_x(x.tensor.spec(), device), there_w(w.tensor.spec(), device), there_dy(dy.tensor.spec(), device),
      dx(x.tensor.spec(), device), dw(w.tensor.spec(), device), once(dw.tensor.spec()), twice(dw.tensor.spec());
  copy(s, there_x.tensor, x.tensor), copy(s, there_w.tensor, w.tensor), copy(s, there_dy.tensor, dy.tensor);
  for (const Write write : {Write::overwrite, Write::accumulate}) {
    Graph g({.parameter_gradients = write});
    const Var vx = g.parameter("x", there_x.tensor, dx.tensor), vw = g.parameter("w", there_w.tensor, dw.tensor);
    const auto qx = fp8_operand(g, vx, {}, Var());
    const Var y = fp8_layer(vx, vw, {}, {}, qx, fp8_operand(g, vw, {}, Var()), {}, {});
    g.backward(y, g.constant("dy", there_dy.tensor));
    Instance exe(g.finish(), nullptr, device);
    exe.run(s);
    copy(s, write == Write::overwrite ? once.tensor : twice.tensor, dw.tensor);
    s.synchronize();
  }
  for (std::int64_t i = 0; i < once.tensor.size(); ++i)
    ASSERT_EQ(twice.tensor.ptr<float>()[i], 2 * once.tensor.ptr<float>()[i]) << i;
}

TEST(fp8_layer, refuses_sizes_in_words) {
  const auto refusal = [](std::int64_t m, std::int64_t n, std::int64_t k) -> std::string {
    Graph g;
    const Var x = g.input("x", {{m, k}, DType::bf16}), w = g.input("w", {{n, k}, DType::f32});
    try {
      fp8_layer(x, w, {}, {}, fp8_operand(g, x, {}, Var()), fp8_operand(g, w, {}, Var()), {}, {});
    } catch (const Error& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal(16, 32, 48), "accepted");
  EXPECT_NE(refusal(17, 32, 48).find("multiples of 16, got 17, 48 and 32"), std::string::npos);
  EXPECT_NE(refusal(16, 30, 48).find("multiples of 16"), std::string::npos);
  EXPECT_NE(refusal(16, 32, 40).find("multiples of 16"), std::string::npos);
}

}  // namespace
}  // namespace hpcdl
