#include "hpcdl/ops/mlp/mlp.spec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "hpcdl/buffer.h"
#include "hpcdl/core/tolerance.h"
#include "hpcdl/ops/cast/cast.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

using testing::Input;

// Moderate inputs: values rounded to 16 bits between the layers are sums of products, and their errors pass through the
// second product, which sums as many terms as there are columns between the layers.
const auto spec = testing::op<Mlp>({
    .cases =
        {
            {.in = {{1, 1}, {1, 1}, {1}, {1, 1}, {1}, Input::none()}},
            {.in = {{2, 3, 9}, {17, 9}, {17}, {5, 17}, {5}, {2, 3, 5}}},
            {.in = {{7, 8}, {8, 24}, {24}, {24, 8}, {8}, {7, 8}}, .args = {.conv1d = true}},
            {.in = {{6, 16}, {40, 16}, Input::none(), {16, 40}, Input::none(), Input::none()},
             .args = {.activation = Activation::relu}},
            {.in = {{6, 16}, {16, 40}, {40}, {40, 16}, {16}, {6, 16}},
             .args = {.activation = Activation::gelu_erf, .conv1d = true}},
            {.in = {{0, 8}, {3, 8}, {3}, {4, 3}, {4}, Input::none()}, .gradient = false},
        },
    .contracts = contract::mlp_contracts(),
    .condition = 40,
    .bf16 = false,
    .outliers = false,
});

/// Both implementations on the same numbers, overwriting and accumulating gradients: on a CPU the same bits.
TEST(Mlp, OnACpuTheBitsOfTwoLayers) {
  constexpr std::int64_t rows = 37, k = 24, f = 70, n = 24;
  for (auto type : {DType::f32, DType::bf16})
    for (auto write : {Write::overwrite, Write::accumulate}) {
      Pool pool(2);
      Stream s(pool);
      std::uint64_t streams = 0;
      const auto made = [&](Shape shape, DType d) {
        OwnedTensor t({shape, d});
        const Rng rng{5, ++streams};
        for (std::int64_t i = 0; i < t.tensor.size(); ++i)
          set_element(t.tensor, i, rng.normal(static_cast<std::uint64_t>(i)));
        return t;
      };
      const auto x = made({rows, k}, type), w1 = made({k, f}, DType::f32), b1 = made({f}, DType::f32),
                 w2 = made({f, n}, DType::f32), b2 = made({n}, DType::f32), residual = made({rows, n}, type),
                 dy = made({rows, n}, type);
      std::vector<std::vector<OwnedTensor>> sides;
      for (int side = 0; side < 2; ++side) {
        streams = 100;
        auto& m = sides.emplace_back();
        for (auto shape : {Shape{rows, n}, Shape{rows, f}, Shape{rows, f}, Shape{rows, k}})
          m.push_back(made(shape, type));  // y z h dx
        for (auto shape : {Shape{k, f}, Shape{f}, Shape{f, n}, Shape{n}})
          m.push_back(made(shape, DType::f32));  // dw1 db1 dw2 db2
        OwnedTensor dz({{rows, f}, type}), dh({{rows, f}, type});
        const auto grad = [&](std::size_t i) { return Grad(m[i].tensor, write); };
        const Mlp::Args a{.conv1d = true};
        if (side == 0) {
          Mlp::forward(s, m[0].tensor, m[1].tensor, m[2].tensor, x.tensor, w1.tensor, b1.tensor, w2.tensor, b2.tensor,
                       residual.tensor, a);
          Mlp::backward(s, grad(3), grad(4), grad(5), grad(6), grad(7), {}, x.tensor, w1.tensor, w2.tensor, m[1].tensor,
                        m[2].tensor, dy.tensor, dz.tensor, a);
        } else {
          ActivatedLinear::forward(s, m[2].tensor, m[1].tensor, x.tensor, w1.tensor, b1.tensor, {}, Mlp::first(a));
          Linear::forward(s, m[0].tensor, m[2].tensor, w2.tensor, b2.tensor, residual.tensor, Mlp::second(a));
          Linear::backward(s, Grad(dh.tensor, Write::overwrite), grad(6), grad(7), {}, m[2].tensor, w2.tensor,
                           dy.tensor, Mlp::second(a));
          ActivatedLinear::backward(s, grad(3), grad(4), grad(5), {}, x.tensor, w1.tensor, m[1].tensor, dh.tensor,
                                    dz.tensor, Mlp::first(a));
        }
      }
      for (std::size_t i = 0; i < sides[0].size(); ++i)
        EXPECT_EQ(std::memcmp(sides[0][i].tensor.data(), sides[1][i].tensor.data(),
                              static_cast<std::size_t>(sides[0][i].tensor.bytes())),
                  0)
            << i;
    }
}

/// In 16 bits on a GPU, against f32 on the CPU. There is one rounding between the layers, which the second product
/// averages out.
TEST(GpuMlp, In16BitsAsInF32) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  constexpr std::int64_t rows = 392, k = 192, f = 776;
  Pool pool(2);
  Stream host(pool), gpu(Device::cuda(0), pool);
  for (const bool conv1d : {false, true})
    for (const auto activation :
         {Activation::gelu_tanh, Activation::gelu_erf}) {  // smooth ones: a value next to 0 must not change sides
      const Mlp::Args a{.activation = activation, .conv1d = conv1d};
      const auto flipped = [&](std::int64_t to, std::int64_t from) {
        return conv1d ? Shape{from, to} : Shape{to, from};
      };
      // y z h dx dw1 db1 dw2 db2 | x w1 b1 w2 b2 residual dy | dz
      const Shape shapes[] = {{rows, k},     {rows, f}, {rows, f}, {rows, k},     flipped(f, k), {f},
                              flipped(k, f), {k},       {rows, k}, flipped(f, k), {f},           flipped(k, f),
                              {k},           {rows, k}, {rows, k}, {rows, f}};
      const auto run = [&](Stream& s, DType type) {
        std::vector<OwnedTensor> t;
        for (std::size_t i = 0; i < std::size(shapes); ++i) {
          const bool weight = (i >= 4 && i < 8) || (i >= 9 && i < 13);
          OwnedTensor values({shapes[i], DType::f32});
          const float scale = i == 9 ? 0.1f : i == 11 ? 0.05f : 1.0f;
          for (std::int64_t e = 0; e < values.tensor.size(); ++e)
            values.tensor.ptr<float>()[e] =
                static_cast<float>(bf16(scale * static_cast<float>(Rng{8, i}.normal(static_cast<std::uint64_t>(e)))));
          OwnedTensor there({shapes[i], DType::f32}, s.device());
          copy(s, there.tensor, values.tensor);
          t.emplace_back(Spec{shapes[i], weight ? DType::f32 : type}, s.device());
          Cast::forward(s, t.back().tensor, there.tensor, {t.back().tensor.dtype()});
        }
        const auto grad = [&](std::size_t i) {
          return Grad(t[i].tensor, i == 3 ? Write::overwrite : Write::accumulate);
        };
        Mlp::forward(s, t[0].tensor, t[1].tensor, t[2].tensor, t[8].tensor, t[9].tensor, t[10].tensor, t[11].tensor,
                     t[12].tensor, t[13].tensor, a);
        Mlp::backward(s, grad(3), grad(4), grad(5), grad(6), grad(7), {}, t[8].tensor, t[9].tensor, t[11].tensor,
                      t[1].tensor, t[2].tensor, t[14].tensor, t[15].tensor, a);
        std::vector<std::vector<float>> out;
        for (std::size_t i = 0; i < 8; ++i) {
          OwnedTensor wide({shapes[i], DType::f32}, s.device());
          Cast::forward(s, wide.tensor, t[i].tensor, {DType::f32});
          copy(s, Tensor(out.emplace_back(static_cast<std::size_t>(wide.tensor.size())).data(), wide.tensor.spec()),
               wide.tensor);
        }
        return out;
      };
      const auto want = run(host, DType::f32);
      for (auto type : {DType::bf16, DType::f16}) {
        const auto got = run(gpu, type);
        for (std::size_t i = 0; i < want.size(); ++i) {
          double worst = 0, largest = 0;
          for (std::size_t e = 0; e < want[i].size(); ++e) {
            worst = std::max(worst, std::fabs(static_cast<double>(got[i][e]) - static_cast<double>(want[i][e])));
            largest = std::max(largest, std::fabs(static_cast<double>(want[i][e])));
          }
          EXPECT_LT(worst, 4 * half_ulp(type) * largest) << dtype_name(type) << " result " << i << " activation "
                                                         << static_cast<int>(activation) << " conv1d " << conv1d;
        }
      }
    }
}

TEST(Mlp, IsForTraining) {
  OwnedTensor x({{2, 4}, DType::f32}), w({{4, 4}, DType::f32}), y({{2, 4}, DType::f32});
  Pool pool(1);
  Stream s(pool);
  EXPECT_THROW(Mlp::forward(s, y.tensor, {}, {}, x.tensor, w.tensor, {}, w.tensor, {}, {}, {}), Error);
}

}  // namespace
}  // namespace hpcdl
