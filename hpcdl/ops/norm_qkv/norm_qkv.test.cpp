#include "hpcdl/ops/norm_qkv/norm_qkv.spec.h"

#include <gtest/gtest.h>

#include "hpcdl/graph.h"
#include "hpcdl/instance.h"
#include "hpcdl/ops/kv_write/kv_write.spec.h"
#include "hpcdl/testing/decoding.h"
#include "hpcdl/testing/every_isa.h"
#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

using testing::Input;
using testing::RandomMatrix;

using Case = testing::OpSpec<contract::NormQkvCall>::Case;

/// Dense matrices and pools of two pages.
Case dense(Shape x, std::int64_t heads, std::int64_t kv_heads, std::int64_t depth, bool biases = false) {
  const auto width = x[-1], n = heads * depth, kv = kv_heads * depth;
  const auto fixed = [](Shape s) { return Input(std::move(s)).fixed(); };
  const auto bias = [&](std::int64_t size) { return biases ? fixed({size}) : Input::none(); };
  const Shape pool{2, kv_heads, kPageTokens, depth};
  const auto places = [&](std::int64_t below) { return Input::indices({x[0] * x[1]}, below); };
  return {.in = {fixed(x), fixed({width}), fixed({x[1] + 3, depth}).as(DType::f32), places(x[1] + 3),
                 places(2 * kPageTokens).as(DType::i64), fixed({n, width}), bias(n), fixed({kv, width}), bias(kv),
                 fixed({kv, width}), bias(kv), fixed(pool), fixed(pool)},
          .args = {.head_dim = depth, .constant_weights = true},
          .aligned = x[0] * x[1] <= 128};  // up to so many rows, aligned ones have their own kernels
}

const auto against_reference = testing::op<contract::NormQkvCall>({
    .cases = {dense({1, 1, 8}, 1, 1, 2), dense({1, 1, 64}, 4, 4, 64), dense({1, 1, 136}, 7, 1, 96, true),
              dense({1, 1, 1000}, 3, 3, 80), dense({1, 1, 33}, 2, 1, 6, true), dense({3, 1, 64}, 4, 2, 32),
              dense({2, 3, 40}, 2, 2, 16, true), dense({0, 1, 8}, 2, 1, 4)},
    .contracts = contract::norm_qkv_contracts(),
});

struct Shapes {
  std::int64_t batch, tokens, width, heads, kv_heads, head_dim, group;  // group 0: dense
  bool asymmetric, bias;
};

constexpr std::int64_t kPages = 12, kPosition = 5, kSlot = 70, kSlotsApart = 5;

/// q, and all of both pools, in which other slots hold 7.
struct Result {
  std::vector<float> q, keys, values;
};

enum class Way { joined, recorded, apart };

/// The elements of a pool on any device.
std::vector<float> elements(Stream& s, const View& pool) {
  const OwnedTensor here(pool.spec());
  copy(s, here.tensor, pool);
  s.synchronize();
  const auto all = contract::pool_values(here.tensor);
  return {all.v.begin(), all.v.end()};
}

/// `slot`: the first of the slots, which lie apart. `stored`: of the pools; none: `type`.
Result computed(Stream& s, const Shapes& d, DType type, Way way, std::int64_t slot = kSlot,
                DType stored = DType::none) {
  const auto n = d.heads * d.head_dim, kv = d.kv_heads * d.head_dim;
  const RandomMatrix parts[] = {{n, d.width, d.group, d.asymmetric, d.bias, 1, type},
                                {kv, d.width, d.group, d.asymmetric, d.bias, 2, type},
                                {kv, d.width, d.group, d.asymmetric, d.bias, 3, type}};
  std::vector<OwnedTensor> memory;
  const Matrix<View> m[] = {parts[0].on(s, memory), parts[1].on(s, memory), parts[2].on(s, memory)};
  const auto x = testing::random_on(s, {d.batch, d.tokens, d.width}, type, 90),
             gamma = testing::random_on(s, {d.width}, type, 91);
  OwnedTensor angles({{kPosition + d.tokens, d.head_dim}, DType::f32}), table(angles.tensor.spec(), s.device());
  rope_table(angles.tensor, 10000);
  copy(s, table.tensor, angles.tensor);
  const std::int64_t rows = d.batch * d.tokens;
  std::vector<std::int32_t> at_positions;
  std::vector<std::int64_t> at_slots;
  for (std::int64_t r = 0; r < rows; ++r) {
    at_positions.push_back(static_cast<std::int32_t>(kPosition + r % d.tokens));
    at_slots.push_back(slot + kSlotsApart * r);
  }
  const OwnedTensor positions({{rows}, DType::i32}, s.device()), slots({{rows}, DType::i64}, s.device());
  copy(s, positions.tensor, View(at_positions.data(), positions.tensor.spec()));
  copy(s, slots.tensor, View(at_slots.data(), slots.tensor.spec()));
  const Spec pool = pool_of(kPages, d.kv_heads, d.head_dim, stored == DType::none ? type : stored);
  OwnedTensor before(pool), keys(pool, s.device()), values(pool, s.device()),
      q(Spec{{d.batch, d.tokens, n}, type}, s.device());
  for (std::int64_t i = 0; i < before.tensor.size(); ++i) set_element(before.tensor, i, 7);
  copy(s, keys.tensor, before.tensor), copy(s, values.tensor, before.tensor);
  s.synchronize();
  const auto specs = [](const Matrix<View>& w) {
    const auto spec = [](const View& v) { return v ? v.spec() : Spec(); };
    return Matrix<Spec>{spec(w.w), spec(w.scale), spec(w.offset), spec(w.bias)};
  };
  const Matrix<Spec> all[] = {specs(m[0]), specs(m[1]), specs(m[2])};
  const NormQkv::Args args{.head_dim = d.head_dim, .constant_weights = true};
  Tensor scratch[6];
  for (std::size_t i = 0; const auto& spec : NormQkv::scratch(x.tensor.spec(), all))
    scratch[i++] = memory.emplace_back(spec, s.device()).tensor;
  if (way == Way::joined) {
    NormQkv::forward(s, q.tensor, keys.tensor, values.tensor, x.tensor, gamma.tensor, table.tensor,
                     {positions.tensor, slots.tensor}, m, scratch, args);
  } else if (way == Way::recorded) {
    Graph g({.inference = true});
    const auto leaf = [&](const char* name, const View& v) {
      return v ? g.constant(name, Tensor(const_cast<void*>(v.data()), v.spec(), v.device())) : Var();
    };
    Matrix<Var> vars[3];
    for (std::size_t i = 0; i < 3; ++i) {
      const auto name = [&](const char* part) { return part + std::to_string(i); };
      vars[i] = {leaf(name("w").c_str(), m[i].w), leaf(name("scale").c_str(), m[i].scale),
                 leaf(name("offset").c_str(), m[i].offset), leaf(name("bias").c_str(), m[i].bias)};
    }
    const Var y = g.keep(norm_qkv(leaf("x", x.tensor), leaf("gamma", gamma.tensor), leaf("table", table.tensor),
                                  {leaf("positions", positions.tensor), leaf("slots", slots.tensor)}, vars,
                                  leaf("keys", keys.tensor), leaf("values", values.tensor), args));
    Instance exe(g.finish(), nullptr, s.device());
    exe.run(s);
    copy(s, q.tensor, exe.tensor(y));
    s.synchronize();
  } else {
    const int4::Scratch rounded{scratch[3], scratch[4], scratch[5]};
    RmsNorm::forward(s, scratch[0], {}, x.tensor, gamma.tensor, {});
    const Tensor to[] = {q.tensor, scratch[1], scratch[2]};
    for (std::size_t i = 0; i < 3; ++i) multiply(s, to[i], scratch[0], m[i], rounded, true);
    for (std::size_t i = 0; i < 2; ++i) Rope::forward(s, to[i], to[i], table.tensor, positions.tensor, {d.head_dim});
    KvWrite::write(s, keys.tensor, values.tensor, to[1], to[2], slots.tensor);
  }
  return {testing::on_host(s, q.tensor), elements(s, keys.tensor), elements(s, values.tensor)};
}

// All GQA ratios, narrow and wide heads, widths that no access size divides, some that the kernels leave to the
// separate ops.
constexpr Shapes kShapes[] = {
    {1, 1, 64, 4, 4, 64, 0, false, false},    {1, 1, 2048, 14, 2, 64, 0, false, true},
    {1, 1, 136, 7, 1, 96, 0, false, false},   {1, 1, 1000, 3, 3, 80, 0, false, true},
    {1, 1, 512, 14, 1, 128, 0, false, false}, {1, 1, 320, 2, 1, 256, 0, false, false},
    {1, 1, 33, 2, 1, 6, 0, false, false},     {3, 1, 64, 4, 2, 32, 0, false, true},
    {2, 3, 40, 2, 2, 16, 0, false, false},    {1, 1, 256, 4, 2, 64, 32, false, false},
    {1, 1, 2048, 8, 1, 128, 64, true, true},  {1, 1, 4096, 2, 1, 96, 128, false, false},
    {1, 1, 512, 3, 1, 80, 64, false, false},  {1, 1, 320, 2, 1, 64, 64, false, true},
    {2, 1, 256, 4, 2, 64, 64, true, false},   {1, 16, 640, 6, 2, 128, 0, false, true},
    {5, 3, 264, 2, 1, 192, 0, false, false},  {1, 24, 2048, 5, 1, 64, 0, false, false},
    {3, 19, 136, 2, 2, 256, 0, false, true},  {1, 128, 520, 3, 1, 64, 0, false, false},
};

class NormQkvTest : public ::testing::TestWithParam<Shapes> {};

TEST_P(NormQkvTest, on_a_cpu_the_bits_of_the_ops_that_it_joins) {
  Pool pool(2);
  testing::for_each_isa([&] {
    for (const auto& [type, stored] :
         {std::pair{DType::f32, DType::f32}, std::pair{DType::bf16, DType::bf16}, std::pair{DType::f32, DType::i8}}) {
      Stream s(pool);
      const auto want = computed(s, GetParam(), type, Way::apart, kSlot, stored);
      for (const Way way : {Way::joined, Way::recorded}) {
        const auto got = computed(s, GetParam(), type, way, kSlot, stored);
        EXPECT_EQ(got.q, want.q);
        EXPECT_EQ(got.keys, want.keys);
        EXPECT_EQ(got.values, want.values);
      }
    }
  });
}

TEST_P(NormQkvTest, on_a_gpu_as_on_a_cpu) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(2);
  Stream host(pool), gpu(Device::cuda(0), pool);
  const bool int4 = GetParam().group > 0;
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    const auto want = computed(host, GetParam(), DType::f32, Way::apart),
               apart = computed(gpu, GetParam(), type, Way::apart);
    const double by_rounding = type == DType::f32    ? 1e-5
                               : type == DType::bf16 ? 0.01
                                                     : 2e-3,
                 allowed = int4 ? by_rounding + 0.02 : by_rounding;  // inputs in 8 bits may round differently
    for (const Way way : {Way::joined, Way::recorded}) {
      const auto got = computed(gpu, GetParam(), type, way);
      EXPECT_LT(testing::distance(got.q, want.q), allowed) << dtype_name(type);
      EXPECT_LT(testing::distance(got.q, apart.q), allowed) << dtype_name(type);
      EXPECT_LT(testing::distance(got.keys, want.keys), allowed) << dtype_name(type);
      EXPECT_LT(testing::distance(got.values, want.values), allowed) << dtype_name(type);
      const auto& d = GetParam();
      for (std::int64_t i = 0; i < std::ssize(got.keys); ++i) {
        const std::int64_t row = i / d.head_dim, page = row / kPageTokens / d.kv_heads,
                           after = page * kPageTokens + row % kPageTokens - kSlot;
        if (after >= 0 && after % kSlotsApart == 0 && after / kSlotsApart < d.batch * d.tokens) continue;
        ASSERT_EQ(got.keys[static_cast<std::size_t>(i)], 7) << "slot " << kSlot + after << " was overwritten";
        ASSERT_EQ(got.values[static_cast<std::size_t>(i)], 7) << "slot " << kSlot + after << " was overwritten";
      }
    }
  }
}

TEST_P(NormQkvTest, fills_pools_of_another_type_on_a_gpu) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(2);
  Stream gpu(Device::cuda(0), pool);
  for (const DType stored : {DType::f32, DType::i8, DType::f8_e4m3}) {
    const auto want = computed(gpu, GetParam(), DType::bf16, Way::apart, kSlot, stored),
               got = computed(gpu, GetParam(), DType::bf16, Way::joined, kSlot, stored);
    const double allowed = (GetParam().group > 0 ? 0.03 : 0.01) + (stored == DType::f8_e4m3 ? 0.04 : 0.01);
    EXPECT_LT(testing::distance(got.q, want.q), allowed) << dtype_name(stored);
    EXPECT_LT(testing::distance(got.keys, want.keys), allowed) << dtype_name(stored);
    EXPECT_LT(testing::distance(got.values, want.values), allowed) << dtype_name(stored);
  }
}

TEST(norm_qkv, writes_nothing_to_slots_outside_the_pools) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  Stream gpu(Device::cuda(0), pool);
  for (const Shapes& d : {kShapes[0], kShapes[9]})
    for (const std::int64_t slot : {std::int64_t{-1}, kPages * kPageTokens}) {
      const auto got = computed(gpu, d, DType::bf16, Way::joined, slot);
      for (float v : got.keys) ASSERT_EQ(v, 7);
      for (float v : got.values) ASSERT_EQ(v, 7);
    }
}

INSTANTIATE_TEST_SUITE_P(all, NormQkvTest, ::testing::ValuesIn(kShapes), [](const auto& c) {
  const Shapes& d = c.param;
  return "width" + std::to_string(d.width) + "_heads" + std::to_string(d.heads) + "_" + std::to_string(d.kv_heads) +
         "_dim" + std::to_string(d.head_dim) + "_group" + std::to_string(d.group) + "_tokens" +
         std::to_string(d.batch * d.tokens);
});

TEST(norm_qkv, refuses_what_does_not_fit) {
  const Spec x{{1, 1, 8}, DType::f32}, gamma{{8}, DType::f32}, table{{9, 4}, DType::f32}, w{{8, 8}, DType::f32},
      pool{{2, 2, kPageTokens, 4}, DType::f32};
  const NormQkv::Places<Spec> at{{{1}, DType::i32}, {{1}, DType::i64}};
  const Matrix<Spec> fit[] = {{w, {}, {}, {}}, {w, {}, {}, {}}, {w, {}, {}, {}}};
  const NormQkv::Args a{.head_dim = 4};
  EXPECT_EQ(NormQkv::checked(x, gamma, table, at, fit, pool, pool, a), x);
  EXPECT_THROW(NormQkv::checked(x, gamma, table, at, fit, Spec({{2, 1, kPageTokens, 4}, DType::f32}), pool, a), Error);
  EXPECT_THROW(NormQkv::checked(x, gamma, table, at, fit, pool, pool, {.head_dim = 6}), Error);
  const Matrix<Spec> odd[] = {{w, {}, {}, {}}, {Spec{{8, 7}, DType::f32}, {}, {}, {}}, {w, {}, {}, {}}};
  EXPECT_THROW(NormQkv::checked(x, gamma, table, at, odd, pool, pool, a), Error);
}

}  // namespace
}  // namespace hpcdl
