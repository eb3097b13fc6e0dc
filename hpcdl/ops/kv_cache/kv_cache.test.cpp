#include "hpcdl/ops/kv_cache/kv_cache.h"

#include <gtest/gtest.h>

#include <cmath>

#include "hpcdl/graph.h"
#include "hpcdl/instance.h"
#include "hpcdl/ops/attention/attention.h"
#include "hpcdl/rng.h"
#include "hpcdl/simd/isa.h"

namespace hpcdl {
namespace {

constexpr std::int64_t B = 2, S = 75, H = 6, G = 2, D = 20, kCapacity = 90;

OwnedTensor random(Shape s, std::uint64_t stream) {
  OwnedTensor x(Spec{s, DType::f32});
  for (std::int64_t i = 0; i < x.tensor.size(); ++i)
    x.tensor.ptr<float>()[i] = static_cast<float>(Rng{1, stream}.normal(static_cast<std::uint64_t>(i)));
  return x;
}

void copy_tokens(const Tensor& to, const View& from, std::int64_t first) {
  for (std::int64_t b = 0; b < to[0]; ++b)
    std::memcpy(to.ptr<float>() + b * to.strides()[0], from.ptr<float>() + b * from.strides()[0] + first * from[2],
                static_cast<std::size_t>(to[1] * to[2]) * sizeof(float));
}

/// One decode step for `tokens` new tokens, recorded once.
struct Step {
  Var q, k, v, y;
  Instance program;
  Step(std::int64_t tokens, const Tensor& k_cache, const Tensor& v_cache)
      : program(record_step(tokens, k_cache, v_cache)) {}
  Recording record_step(std::int64_t tokens, const Tensor& k_cache, const Tensor& v_cache) {
    Graph g({.inference = true});
    q = g.input("q", {{B, tokens, H * D}, DType::f32});
    k = g.input("k", {{B, tokens, G * D}, DType::f32});
    v = g.input("v", {{B, tokens, G * D}, DType::f32});
    const Var kc = g.constant("k_cache", k_cache), vc = g.constant("v_cache", v_cache);
    append_to_cache(kc, vc, k, v);
    y = g.keep(attention(q, kc, vc, {.heads = H, .kv_heads = G, .cached = true}));
    return g.finish();
  }
};

class KvCacheTest : public testing::TestWithParam<std::tuple<simd::IsaKind, DType>> {
 public:
  void SetUp() override {
    before_ = simd::active_isa();
    if (!simd::set_active_isa(std::get<0>(GetParam()))) GTEST_SKIP() << "this CPU lacks this instruction set";
  }
  void TearDown() override { simd::set_active_isa(before_); }

 private:
  simd::IsaKind before_{};
};

// Prefill of 7 tokens, then chunks of 3 and of 1, against causal attention over all tokens at once.
TEST_P(KvCacheTest, decoding_gives_what_the_whole_sequence_gives) {
  const DType dtype = std::get<1>(GetParam());
  const auto q = random({B, S, H * D}, 1), k = random({B, S, G * D}, 2), v = random({B, S, G * D}, 3);
  Pool pool(2);
  StepParams params;
  Stream s(pool, &params);
  OwnedTensor whole(q.tensor.spec());
  Attention::forward(s, whole.tensor, {}, q.tensor, k.tensor, v.tensor, {}, {.heads = H, .kv_heads = G});

  OwnedTensor kc(Spec{{B, kCapacity, G * D}, dtype}), vc(kc.tensor.spec());
  std::memset(kc.buffer.data(), 0xff,
              static_cast<std::size_t>(kc.tensor.bytes()));  // elements that were not written must not be read
  std::memset(vc.buffer.data(), 0xff, static_cast<std::size_t>(vc.tensor.bytes()));
  Step seven(7, kc.tensor, vc.tensor), three(3, kc.tensor, vc.tensor), one(1, kc.tensor, vc.tensor);
  // The keys and values of a bf16 cache have an error of half an ulp each; values reach 4.
  const double allowed = dtype == DType::f32 ? 1e-5 : 4 * 0x1p-8 * 4;
  while (params.position < S) {
    const Step& step = params.position == 0 ? seven : params.position < 40 ? three : one;
    const auto tokens = step.q[1];
    copy_tokens(step.program.tensor(step.q), q.tensor, params.position);
    copy_tokens(step.program.tensor(step.k), k.tensor, params.position);
    copy_tokens(step.program.tensor(step.v), v.tensor, params.position);
    step.program.run(s);
    const Tensor y = step.program.tensor(step.y);
    for (std::int64_t b = 0; b < B; ++b)
      for (std::int64_t i = 0; i < tokens * H * D; ++i)
        ASSERT_NEAR(y.ptr<float>()[b * tokens * H * D + i],
                    whole.tensor.ptr<float>()[(b * S + params.position) * H * D + i], allowed)
            << "token " << params.position << " + " << i / (H * D) << " of sequence " << b;
    params.position += tokens;
  }
  params.position = kCapacity - 2;
  EXPECT_THROW(three.program.run(s), Error);
}

INSTANTIATE_TEST_SUITE_P(all, KvCacheTest,
                         testing::Combine(testing::ValuesIn(simd::kIsaKinds), testing::Values(DType::f32, DType::bf16)),
                         [](const auto& c) {
                           return std::string(simd::isa_name(std::get<0>(c.param))) + "_" +
                                  std::string(dtype_name(std::get<1>(c.param)));
                         });

TEST(kv_cache, refuses_what_does_not_fit) {
  const auto spec = [](Shape s) { return Spec{s, DType::f32}; };
  EXPECT_THROW(AppendToCache::check(spec({2, 8, 16}), spec({2, 9, 16})), Error);
  EXPECT_THROW(AppendToCache::check(spec({2, 8, 16}), spec({1, 2, 16})), Error);
  EXPECT_THROW(AppendToCache::check(spec({2, 8, 16}), spec({2, 2, 8})), Error);
  EXPECT_THROW(AppendToCache::check(spec({2, 8, 16}), Spec({{2, 2, 16}, DType::i32})), Error);
}

}  // namespace
}  // namespace hpcdl
