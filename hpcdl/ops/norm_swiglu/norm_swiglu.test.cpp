#include "hpcdl/ops/norm_swiglu/norm_swiglu.spec.h"

#include <gtest/gtest.h>

#include "hpcdl/ops/cast/cast.h"
#include "hpcdl/ops/swiglu/swiglu.h"
#include "hpcdl/testing/decoding.h"
#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

using testing::Input;
using testing::RandomMatrix;

using Case = testing::OpSpec<NormSwiglu>::Case;

Case dense(Shape x, std::int64_t n, bool biases = false) {
  const std::int64_t k = x[-1];
  const Input none = Input::none(), bias = biases ? Input({n}).fixed() : none;
  return {.in = {Input(x).fixed(), Input({k}).fixed(), Input({n, k}).fixed(), none, none, bias, Input({n, k}).fixed(),
                 none, none, bias},
          .args = {.constant_weights = true},
          .aligned = x.size() <= 64 * k};  // up to so many rows, aligned ones have their own kernels
}

const auto spec = testing::op<NormSwiglu>({
    .cases = {dense({1, 1, 8}, 1), dense({1, 1, 64}, 32), dense({1, 1, 136}, 7, true), dense({1, 1, 2048}, 75),
              dense({1, 1, 1000}, 2200), dense({1, 1, 3000}, 40, true), dense({1, 33}, 20), dense({3, 1, 64}, 40),
              dense({2, 5, 24}, 17, true), dense({0, 1, 8}, 3), dense({2, 1, 72}, 5),
              // All of k in one block of a GPU's kernel for several rows, and in several; more rows than it takes.
              dense({16, 1, 264}, 70, true), dense({3, 9, 520}, 129), dense({1, 64, 1000}, 64),
              dense({5, 13, 200}, 33)},
    .contracts = contract::norm_swiglu_contracts(),
    .outliers = false,  // products of two sums, which would exceed the range of f16
});

std::vector<float> computed(Stream& s, DType type, const RandomMatrix& gate, const RandomMatrix& up, bool joined) {
  const OwnedTensor x = testing::random_on(s, {1, 1, gate.k}, type, 1),
                    gamma = testing::random_on(s, {gate.k}, type, 2);
  std::vector<OwnedTensor> memory;
  const auto g = gate.on(s, memory), u = up.on(s, memory);
  const auto specs = [](const Matrix<View>& m) {
    return Matrix<Spec>{m.w.spec(), m.scale.spec(), m.offset ? m.offset.spec() : Spec(),
                        m.bias ? m.bias.spec() : Spec()};
  };
  const auto a = specs(g), b = specs(u);
  const auto scratch = NormSwiglu::scratch(x.tensor.spec(), gamma.tensor.spec(), a.w, a.scale, a.offset, a.bias, b.w,
                                           b.scale, b.offset, b.bias, {});
  OwnedTensor y(Spec{{1, 1, gate.n}, type}, s.device()), h(scratch[0], s.device()), other(scratch[1], s.device()),
      values(scratch[2], s.device()), groups(scratch[3], s.device());
  if (joined) {
    NormSwiglu::forward(s, y.tensor, x.tensor, gamma.tensor, g.w, g.scale, g.offset, g.bias, u.w, u.scale, u.offset,
                        u.bias, h.tensor, other.tensor, values.tensor, groups.tensor, {.constant_weights = true});
  } else {
    const auto rounded = testing::int4_scratch(s, x.tensor, g);
    const int4::Scratch parts{rounded[0].tensor, rounded[1].tensor, rounded[2].tensor};
    RmsNorm::forward(s, h.tensor, {}, x.tensor, gamma.tensor, {});
    multiply(s, y.tensor, h.tensor, g, parts, true);
    multiply(s, other.tensor, h.tensor, u, parts, true);
    Swiglu::forward(s, y.tensor, y.tensor, other.tensor, {});
  }
  return testing::on_host(s, y.tensor);
}

// Shapes that the kernel for INT4 supports, and some that it leaves to the separate ops.
TEST(norm_swiglu, int4_as_the_ops_that_it_joins) {
  Pool pool(2);
  Stream host(pool);
  for (const auto& [n, k, group, asymmetric, bias] : {std::tuple{5, 32, 32, false, false},
                                                      {16, 256, 32, false, false},
                                                      {48, 512, 64, true, true},
                                                      {64, 2048, 64, false, false},
                                                      {32, 4096, 128, true, false},
                                                      {24, 256, 64, false, true},
                                                      {16, 5120, 128, true, false}}) {
    const RandomMatrix gate(n, k, group, asymmetric, bias, 3), up(n, k, group, asymmetric, bias, 4);
    const auto want = computed(host, DType::f32, gate, up, false);
    EXPECT_EQ(computed(host, DType::f32, gate, up, true), want) << n << " x " << k;
    if (cuda_devices() == 0) continue;
    Stream gpu(Device::cuda(0), pool);
    // Inputs in 8 bits may round differently if a norm differs by an ulp.
    EXPECT_LT(
        testing::distance(computed(gpu, DType::bf16, gate, up, true), computed(gpu, DType::bf16, gate, up, false)),
        0.02)
        << n << " x " << k;
    EXPECT_LT(testing::distance(computed(gpu, DType::bf16, gate, up, true), want), 0.03) << n << " x " << k;
  }
}

TEST(norm_swiglu, refuses_matrices_that_differ) {
  const Spec x{{1, 1, 8}, DType::f32}, gamma{{8}, DType::f32}, w{{4, 8}, DType::f32}, other{{5, 8}, DType::f32};
  EXPECT_THROW(NormSwiglu::infer(x, gamma, w, {}, {}, {}, other, {}, {}, {}, {}), Error);
  EXPECT_THROW(NormSwiglu::infer(x, gamma, Spec{{4, 7}, DType::f32}, {}, {}, {}, w, {}, {}, {}, {}), Error);
}

}  // namespace
}  // namespace hpcdl
