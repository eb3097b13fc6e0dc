#include "hpcdl/ops/matmul/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "hpcdl/ops/activations.h"
#include "hpcdl/rng.h"
#include "hpcdl/simd/isa.h"

namespace hpcdl::gemm {
namespace {

using simd::IsaKind;
namespace ep = epilogue;

struct Matrix {  // of logical shape rows x cols, stored as given, with unused elements between its rows
  std::vector<std::byte> bytes;
  std::int64_t rows, cols, ld;
  DType dtype;
  bool transposed;

  Matrix(std::int64_t r, std::int64_t c, DType t, bool trans, std::uint64_t seed, std::int64_t slack = 0)
      : rows(r), cols(c), ld((trans ? r : c) + slack), dtype(t), transposed(trans) {
    const std::int64_t n = (trans ? c : r) * ld;
    bytes.assign(static_cast<std::size_t>(n * dtype_bytes(t)), std::byte{0xff});  // the unused elements read as NaN
    const Rng rng{seed, 1};
    for (std::int64_t i = 0; i < r; ++i)
      for (std::int64_t j = 0; j < c; ++j) {
        const auto at = static_cast<std::uint64_t>(i * c + j);
        const float outlier = rng.bits(at + 1'000'000) % 97 == 0 ? 30.0f : 1.0f;
        set(i, j, static_cast<float>(rng.normal(at)) * outlier);
      }
  }
  std::size_t index(std::int64_t i, std::int64_t j) const {
    return static_cast<std::size_t>(transposed ? j * ld + i : i * ld + j);
  }
  double get(std::int64_t i, std::int64_t j) const {
    if (dtype == DType::bf16) return reinterpret_cast<const bf16*>(bytes.data())[index(i, j)];
    return reinterpret_cast<const float*>(bytes.data())[index(i, j)];
  }
  void set(std::int64_t i, std::int64_t j, float v) {
    if (dtype == DType::bf16) reinterpret_cast<bf16*>(bytes.data())[index(i, j)] = bf16(v);
    else reinterpret_cast<float*>(bytes.data())[index(i, j)] = v;
  }
  Operand operand() const { return {bytes.data(), dtype, ld, transposed}; }
};

struct Case {
  std::int64_t m, n, k;
};

Problem problem(const Matrix& a, const Matrix& b, Compute c) {
  return {.m = a.rows, .n = b.cols, .k = a.cols, .compute = c, .a = a.operand(), .b = b.operand()};
}

/// Sum and sum of magnitudes of the products, in double, with operands rounded according to `c`.
std::pair<double, double> exact(const Matrix& a, const Matrix& b, Compute c, std::int64_t i, std::int64_t j) {
  const auto seen = [&](double v) {
    return c == Compute::bf16 ? static_cast<double>(float(bf16(static_cast<float>(v)))) : v;
  };
  double sum = 0, size = 0;
  for (std::int64_t k = 0; k < a.cols; ++k) {
    const double x = seen(a.get(i, k)) * seen(b.get(k, j));
    sum += x, size += std::fabs(x);
  }
  return {sum, size};
}

/// The rounding error of a sum of k f32 terms, in any order, and of the store.
double tolerance(double value, double size, std::int64_t k, DType out) {
  const double sums = std::ldexp(1.0, -24) * static_cast<double>(k + 2) * size + 1e-30;
  return sums + (out == DType::bf16 ? std::ldexp(1.0, -8) * std::fabs(value) : 0);
}

template <class T> std::vector<T> poisoned(std::int64_t n) {
  std::vector<T> v(static_cast<std::size_t>(n));
  std::memset(static_cast<void*>(v.data()), 0xff, v.size() * sizeof(T));
  return v;
}

class Gemm : public ::testing::TestWithParam<IsaKind> {
 protected:
  void SetUp() override {
    before_ = simd::active_isa();
    if (!simd::set_active_isa(GetParam())) GTEST_SKIP() << "this CPU lacks " << simd::isa_name(GetParam());
  }
  void TearDown() override { simd::set_active_isa(before_); }
  template <class E> void call(Pool& pool, const Problem& p, const E& e) const {
    simd::with_isa(GetParam(), [&](auto isa) { gemm(isa, pool, p, e); });
  }
  template <class T> void expect_product(const Matrix& a, const Matrix& b, Compute c, const char* what) {
    const std::int64_t ld = b.cols + 3;
    auto d = poisoned<T>(a.rows * ld), d2 = d;
    call(two_, problem(a, b, c), ep::Into<T>{.d = d.data(), .ld = ld});
    call(one_, problem(a, b, c), ep::Into<T>{.d = d2.data(), .ld = ld});
    ASSERT_EQ(0, std::memcmp(d.data(), d2.data(), d.size() * sizeof(T))) << "1 and 2 threads differ: " << what;
    for (std::int64_t i = 0; i < a.rows; ++i) {
      for (std::int64_t j = 0; j < b.cols; ++j) {
        const auto [sum, size] = exact(a, b, c, i, j);
        ASSERT_NEAR(sum, static_cast<double>(static_cast<float>(d[static_cast<std::size_t>(i * ld + j)])),
                    tolerance(sum, size, a.cols, dtype_of<T>))
            << what << " m=" << a.rows << " n=" << b.cols << " k=" << a.cols << " at " << i << "," << j;
      }
      for (std::int64_t j = b.cols; j < ld; ++j)
        ASSERT_TRUE(std::isnan(static_cast<float>(d[static_cast<std::size_t>(i * ld + j)])))
            << "wrote past the end of the row";
    }
  }
  IsaKind before_{};
  Pool one_{1}, two_{2};
};

const Case kShapes[] = {{1, 1, 1},       {1, 7, 5},      {2, 33, 16},    {3, 1, 17},   {5, 47, 3},   {1, 300, 70},
                        {4, 150, 33},    {6, 131, 99},   {7, 48, 64},    {8, 49, 31},  {9, 97, 33},  {13, 16, 130},
                        {17, 129, 15},   {29, 31, 37},   {64, 64, 64},   {101, 3, 50}, {33, 34, 65}, {48, 80, 96},
                        {193, 131, 130}, {199, 530, 33}, {205, 17, 1000}};

TEST_P(Gemm, EveryTransposeDtypeAndTail) {
  for (const auto& c : kShapes)
    for (int bits = 0; bits < 32; ++bits) {
      const bool ta = bits & 1, tb = bits & 2, half = bits & 16;
      const DType da = bits & 4 ? DType::bf16 : DType::f32, db = bits & 8 ? DType::bf16 : DType::f32;
      const Matrix a(c.m, c.k, da, ta, 1, bits % 3), b(c.k, c.n, db, tb, 2, bits % 5);
      const std::string what = std::string(ta ? "t" : "n") + (tb ? "t " : "n ") + std::string(dtype_name(da)) + "x" +
                               std::string(dtype_name(db)) + (half ? " bf16" : " f32");
      expect_product<float>(a, b, half ? Compute::bf16 : Compute::f32, what.c_str());
      if (HasFatalFailure()) return;
      if (bits % 7 == 0) expect_product<bf16>(a, b, half ? Compute::bf16 : Compute::f32, what.c_str());
      if (HasFatalFailure()) return;
    }
}

// Several k blocks and blocks of rows, divided by rows and by columns.
TEST_P(Gemm, BlockedShapes) {
  for (const Case& c :
       {Case{5, 50, 2500}, Case{700, 9, 600}, Case{530, 100, 1030}, Case{40, 1700, 40}, Case{203, 50, 2500}})
    for (int bits = 0; bits < 4; ++bits) {
      const Matrix a(c.m, c.k, DType::f32, bits & 1, 3), b(c.k, c.n, DType::f32, bits & 2, 4);
      expect_product<float>(a, b, bits == 3 ? Compute::bf16 : Compute::f32, "blocked");
      if (HasFatalFailure()) return;
      expect_product<bf16>(a, b, Compute::f32, "blocked");
      if (HasFatalFailure()) return;
    }
}

// On tile registers: several groups of panels, the last of them smaller, each processing k in several turns; A in place
// (k of whole steps) and packed, one block of k and several.
TEST_P(Gemm, GroupsOfPanelsTakeTurns) {
  for (const Case& c : {Case{70, 300, 640}, Case{45, 330, 630}, Case{37, 200, 2300}})
    for (const bool trans : {false, true}) {
      const Matrix a(c.m, c.k, DType::bf16, false, 21), b(c.k, c.n, DType::bf16, trans, 22);
      expect_product<float>(a, b, Compute::bf16, "groups");
      if (HasFatalFailure()) return;
      expect_product<bf16>(a, b, Compute::bf16, "groups");
      if (HasFatalFailure()) return;
    }
}

TEST_P(Gemm, PackedWeightGivesTheSameBits) {
  for (const Case& c : {Case{7, 50, 70}, Case{20, 130, 1100}, Case{40, 500, 600}, Case{7, 1, 1}, Case{230, 130, 900}})
    for (const Compute compute : {Compute::f32, Compute::bf16})
      for (const bool trans : {false, true}) {
        const Matrix a(c.m, c.k, DType::f32, false, 5), b(c.k, c.n, DType::f32, trans, 6);
        Problem p = problem(a, b, compute);
        auto d = poisoned<float>(c.m * c.n), d2 = d;
        call(two_, p, ep::Into<float>{.d = d.data(), .ld = c.n});
        const auto& set =
            simd::with_isa(GetParam(), [&](auto isa) -> const KernelSet& { return kernel_set(isa, compute); });
        const Buffer packed(packed_b_bytes(set, c.n, c.k));
        pack_b(set, two_, packed.data(), p.b, c.n, c.k);
        p.b = {};
        p.packed_b = packed.data();
        call(two_, p, ep::Into<float>{.d = d2.data(), .ld = c.n});
        ASSERT_EQ(d, d2);
      }
}

// Non-temporal stores: rows that begin on a line, rows that do not, a tail, several blocks of k; D that accumulates.
TEST_P(Gemm, ColdResultsHaveTheSameBits) {
  for (const Case& c : {Case{70, 96, 40}, Case{19, 53, 40}, Case{70, 160, 1100}, Case{33, 112, 3}, Case{3, 64, 40},
                        Case{200, 160, 1100}})
    for (const bool trans : {false, true}) {
      const Matrix a(c.m, c.k, DType::f32, trans, 14), b(c.k, c.n, DType::f32, false, 15);
      const std::int64_t ld = (c.n + 15) / 16 * 16 + (trans ? 3 : 0);
      const Buffer warm(c.m * ld * 4), cold(c.m * ld * 4);
      for (const Compute compute : {Compute::f32, Compute::bf16})
        for (const bool accumulate : {false, true}) {
          for (const Buffer* d : {&warm, &cold})
            call(two_, problem(a, b, compute),
                 ep::Into<float>{
                     .d = reinterpret_cast<float*>(d->data()), .ld = ld, .accumulate = accumulate, .cold = d == &cold});
          for (std::int64_t i = 0; i < c.m; ++i)
            ASSERT_EQ(
                0, std::memcmp(warm.data() + i * ld * 4, cold.data() + i * ld * 4, static_cast<std::size_t>(c.n) * 4))
                << c.m << "x" << c.n << "x" << c.k << ", row " << i;
        }
    }
}

TEST_P(Gemm, EpiloguesAndAccumulation) {
  const std::int64_t m = 19, n = 53, k = 40;
  const Matrix a(m, k, DType::f32, false, 7), b(k, n, DType::f32, false, 8), r(m, n, DType::f32, false, 9),
      bias(1, n, DType::f32, false, 10);
  const auto* c = reinterpret_cast<const float*>(r.bytes.data());
  const auto* bs = reinterpret_cast<const float*>(bias.bytes.data());
  const Problem p = problem(a, b, Compute::f32);
  const auto check = [&](const std::vector<float>& d, auto want, const char* what) {
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        const auto [sum, size] = exact(a, b, Compute::f32, i, j);
        const double w = want(sum, i, j);
        ASSERT_NEAR(d[static_cast<std::size_t>(i * n + j)], w,
                    2 * tolerance(w, size + std::fabs(c[i * n + j]) + std::fabs(bs[j]), k + 10, DType::f32) + 1e-6)
            << what << " at " << i << "," << j;
      }
  };
  auto d = poisoned<float>(m * n), pre = d;
  call(two_, p, ep::Into<float, ep::Chain<ep::Residual<float>, ep::Relu>>{.d = d.data(), .ld = n, .f = {{c, n}, {}}});
  check(d, [&](double s, auto i, auto j) { return std::max(0.0, s + c[i * n + j]); }, "relu(acc + C)");
  call(two_, p, ep::Into<float, ep::Scale>{.d = d.data(), .ld = n, .f = {0.25f}});
  check(d, [&](double s, auto, auto) { return s * 0.25; }, "scale");
  call(two_, p,
       ep::IntoLinear<float, float, ep::GeluTanh>{.d = d.data(), .ld = n, .f = {{bs}, {pre.data(), n}, {}, {}}});
  check(d, [&](double s, auto, auto j) { return contract::gelu_tanh(s + bs[j]); }, "bias, gelu_tanh");
  check(pre, [&](double s, auto, auto j) { return s + bs[j]; }, "pre-activation");
  call(two_, p, ep::IntoLinear<float, float, ep::GeluErf>{.d = d.data(), .ld = n, .f = {{bs}, {}, {}, {c, n}}});
  check(
      d, [&](double s, auto i, auto j) { return contract::gelu_erf(s + bs[j]) + c[i * n + j]; },
      "bias, gelu_erf, residual");
  call(two_, p, ep::IntoLinear<float, float, ep::Identity>{.d = d.data(), .ld = n});
  check(d, [&](double s, auto, auto) { return s; }, "nothing");
  std::memcpy(d.data(), c, d.size() * sizeof(float));
  call(two_, p, ep::IntoLinear<float, float, ep::Identity>{.d = d.data(), .ld = n, .f = {{}, {}, {}, {d.data(), n}}});
  check(d, [&](double s, auto i, auto j) { return s + c[i * n + j]; }, "residual in place");
  std::memcpy(d.data(), c, d.size() * sizeof(float));
  call(two_, p, ep::Into<float>{.d = d.data(), .ld = n, .accumulate = true});
  check(d, [&](double s, auto i, auto j) { return s + c[i * n + j]; }, "accumulate");
}

TEST_P(Gemm, BytesAreExact) {
  for (const Case& c : {Case{1, 1, 1}, Case{3, 50, 70}, Case{20, 49, 4096}, Case{40, 400, 1100}, Case{9, 17, 6}})
    for (int bits = 0; bits < 4; ++bits) {
      const bool ta = bits & 1, tb = bits & 2;
      std::vector<std::uint8_t> a(static_cast<std::size_t>(c.m * c.k));
      std::vector<std::int8_t> b(static_cast<std::size_t>(c.k * c.n));
      const Rng rng{11, 0};
      for (std::size_t i = 0; i < a.size(); ++i)
        a[i] = static_cast<std::uint8_t>(rng.bits(i) % 7 == 0 ? 255 : rng.bits(i) >> 24);
      for (std::size_t i = 0; i < b.size(); ++i)
        b[i] = static_cast<std::int8_t>(rng.bits(i + 999) % 7 == 0 ? -128 : rng.bits(i + 999) >> 24);
      const Problem p{.m = c.m,
                      .n = c.n,
                      .k = c.k,
                      .compute = Compute::int8,
                      .a = {a.data(), DType::u8, ta ? c.m : c.k, ta},
                      .b = {b.data(), DType::i8, tb ? c.k : c.n, tb}};
      auto d = poisoned<std::int32_t>(c.m * c.n);
      auto f = poisoned<float>(c.m * c.n);
      std::vector<float> rows(static_cast<std::size_t>(c.m), 0.5f), cols(static_cast<std::size_t>(c.n), 0.25f);
      simd::with_isa(GetParam(), [&](auto isa) {
        gemm_int8(isa, two_, p, ep::Into<std::int32_t>{.d = d.data(), .ld = c.n});
        gemm_int8(isa, two_, p,
                  ep::Into<float, ep::Chain<ep::Dequant, ep::Bias<float>>>{
                      .d = f.data(), .ld = c.n, .f = {{rows.data(), cols.data()}, {}}});
      });
      for (std::int64_t i = 0; i < c.m; ++i)
        for (std::int64_t j = 0; j < c.n; ++j) {
          std::int32_t want = 0;
          for (std::int64_t k = 0; k < c.k; ++k)
            want += a[static_cast<std::size_t>(ta ? k * c.m + i : i * c.k + k)] *
                    b[static_cast<std::size_t>(tb ? j * c.k + k : k * c.n + j)];
          ASSERT_EQ(d[static_cast<std::size_t>(i * c.n + j)], want) << i << "," << j << " bits " << bits;
          ASSERT_EQ(f[static_cast<std::size_t>(i * c.n + j)], static_cast<float>(want) * 0.125f);
        }
    }
}

TEST_P(Gemm, NanAndInfinityArriveWhereTheyShould) {
  // The second in several blocks of k; the first and the last contain nonzero elements.
  for (const Case& s : {Case{11, 37, 20}, Case{203, 37, 1700}}) {
    Matrix a(s.m, s.k, DType::f32, false, 12), b(s.k, s.n, DType::f32, false, 13);
    a.set(4, s.k - 3, std::numeric_limits<float>::quiet_NaN());
    b.set(3, 30, std::numeric_limits<float>::infinity());
    for (const Compute c : {Compute::f32, Compute::bf16}) {
      auto d = poisoned<float>(s.m * s.n), e = d;
      call(two_, problem(a, b, c), ep::Into<float>{.d = d.data(), .ld = s.n});
      call(two_, problem(a, b, c), ep::IntoLinear<float, float, ep::Relu>{.d = e.data(), .ld = s.n});
      for (std::int64_t i = 0; i < s.m; ++i)
        for (std::int64_t j = 0; j < s.n; ++j) {
          const float v = d[static_cast<std::size_t>(i * s.n + j)], r = e[static_cast<std::size_t>(i * s.n + j)];
          if (i == 4) ASSERT_TRUE(std::isnan(v) && std::isnan(r));
          else if (j == 30) ASSERT_TRUE(std::isinf(v) && std::signbit(v) == std::signbit(a.get(i, 3)));
          else ASSERT_TRUE(std::isfinite(v) && r == std::max(0.0f, v));
        }
    }
  }
}

// f32 over its full range, at the limits of which split representations of an operand fail: the largest numbers, values
// that rounding to fewer bits would carry beyond them, sums of which only parts would overflow.
TEST_P(Gemm, LargestNumbers) {
  constexpr float kMax = std::numeric_limits<float>::max();
  for (const std::int64_t m : {3, 11, 203}) {
    const std::int64_t n = m < 200 ? 37 : 8200;  // the last for tile registers
    Matrix a(m, 2, DType::f32, false, 16), b(2, n, DType::f32, false, 17);
    for (std::int64_t i = 0; i < m; ++i) a.set(i, 0, i % 2 ? -kMax : kMax), a.set(i, 1, i % 3 ? 0.0f : kMax);
    for (std::int64_t j = 0; j < n; ++j) b.set(0, j, 1.0f), b.set(1, j, j % 5 ? 0.0f : 1.0f);
    auto d = poisoned<float>(m * n);
    call(two_, problem(a, b, Compute::f32), ep::Into<float>{.d = d.data(), .ld = n});
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j)
        ASSERT_EQ(d[static_cast<std::size_t>(i * n + j)],
                  static_cast<float>(a.get(i, 0)) + static_cast<float>(a.get(i, 1)) * static_cast<float>(b.get(1, j)))
            << "m=" << m << " at " << i << "," << j;
  }
}

TEST_P(Gemm, EmptySums) {
  std::vector<float> d(6, 7.0f), bias{1, 2, 3};
  const Problem p{.m = 2, .n = 3, .k = 0, .a = {d.data(), DType::f32, 0, false}, .b = {d.data(), DType::f32, 3, false}};
  call(two_, p, ep::IntoLinear<float, float, ep::Identity>{.d = d.data(), .ld = 3, .f = {{bias.data()}, {}, {}, {}}});
  EXPECT_EQ(d, (std::vector<float>{1, 2, 3, 1, 2, 3}));
  call(two_, {.m = 0, .n = 3, .k = 5}, ep::Into<float>{});
  call(two_, {.m = 3, .n = 0, .k = 5}, ep::Into<float>{});
}

INSTANTIATE_TEST_SUITE_P(Isa, Gemm, ::testing::ValuesIn(simd::kIsaKinds),
                         [](const auto& p) { return std::string(simd::isa_name(p.param)); });

}  // namespace
}  // namespace hpcdl::gemm
