#include "hpcdl/ops/softmax/softmax.spec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/testing/every_isa.h"
#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

const auto
    spec =
        testing::op<Softmax>(
            {
                .cases =
                    {
                        {.in = {{1, 1}}},
                        {.in = {{3, 7}}},
                        {.in = {{4, 1023}}},
                        {.in = {{64, 257}}, .args = {.scale = 0.125f}},
                        {.in = {{2, 5, 16}}, .args = {.scale = 0.5f, .causal = true}},
                        {.in = {{3, 17, 33}}, .args = {.scale = 1, .causal = true}},
                        {.in = {{2, 50257}}},
                        {.in = {{1, 262144}}, .gradient = false},
                        // Every team of a GPU: parts of warps, warps, blocks, clusters of 2, 4 and 8 blocks, and rows
                        // that begin
                        // blocks, and rows that begin inside a pack.
                        {.in = {{70, 24}}, .args = {.scale = -2}},
                        {.in = {{33, 200}}},
                        {.in = {{9, 1000}}},
                        {.in = {{5, 2040}}, .gradient = false},
                        {.in = {{3, 4099}}, .gradient = false},
                        {.in = {{3, 9001}}, .gradient = false},
                        {.in = {{2, 20480}}, .gradient = false},
                        {.in = {{3, 100003}}, .gradient = false},
                        // Causal rows in parts of warps, warps and blocks, of squares and with more columns than rows.
                        {.in = {{3, 9, 24}}, .args = {.scale = -2, .causal = true}},
                        {.in = {{2, 33, 200}}, .args = {.scale = 1, .causal = true}, .aligned = true},
                        {.in = {{1, 5, 1001}}, .args = {.scale = 1, .causal = true}},
                        {.in = {{2, 130, 1024}},
                         .args = {.scale = 1, .causal = true},
                         .gradient = false,
                         .aligned = true},
                        {.in = {{1, 7, 4096}},
                         .args = {.scale = 1, .causal = true},
                         .gradient = false,
                         .aligned = true},
                        {.in = {{2, 4, 9001}}, .args = {.scale = 1, .causal = true}, .gradient = false},
                        {.in = {{0, 8}}},
                    },
                .contracts = contract::softmax_contracts(),
            });

/// A result too large for the cache is written with non-temporal stores: its bits equal, row by row, those of a small
/// one. Odd rows start unaligned.
TEST(Softmax, LargeResultsHaveTheBitsOfSmallOnes) {
  constexpr std::int64_t rows = 1100, n = 4099;
  std::vector<float> x(rows * n), y(rows * n, NAN), dx(rows * n, NAN), row(n);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 7919 % 1000) / 100;
  Pool pool(2);
  Stream s(pool);
  const auto at = [&](std::vector<float>& v, std::int64_t first, std::int64_t count) {
    return Tensor(&v[static_cast<std::size_t>(first * n)], {{count, n}, DType::f32});
  };
  const auto same = [&](const std::vector<float>& all, std::int64_t r) {
    return std::memcmp(row.data(), &all[static_cast<std::size_t>(r * n)], n * sizeof(float)) == 0;
  };
  Softmax::forward(s, at(y, 0, rows), at(x, 0, rows), {});
  Softmax::backward(s, Grad(at(dx, 0, rows), Write::overwrite), at(y, 0, rows), at(x, 0, rows), {});
  for (std::int64_t r : {0, 1, 549, 550, 1099}) {
    Softmax::forward(s, at(row, 0, 1), at(x, r, 1), {});
    EXPECT_TRUE(same(y, r)) << r;
    Softmax::backward(s, Grad(at(row, 0, 1), Write::overwrite), at(y, r, 1), at(x, r, 1), {});
    EXPECT_TRUE(same(dx, r)) << r;
  }
}

/// Rows of whole lines with non-temporal stores are written while the next row is computed: the same bits as a single
/// row, with every instruction set, any number of threads, a row of only -inf and one that begins with -inf. n: one
/// block, and several.
TEST(Softmax, RowsInTurnHaveTheBitsOfARowAlone) {
  for (const auto& [rows, n] : {std::pair<std::int64_t, std::int64_t>{4224, 1008}, {520, 8208}}) {
    OwnedTensor x({{rows, n}, DType::f32}), y(x.tensor.spec()), row({{1, n}, DType::f32});
    const auto at = [n = n](const OwnedTensor& t, std::int64_t r) { return t.tensor.ptr<float>() + r * n; };
    for (std::int64_t i = 0; i < rows * n; ++i)
      at(x, 0)[i] = static_cast<float>(i * 7919 % 1000) / 100 + static_cast<float>(i % n / 2000 * 7 % 4);
    std::fill_n(at(x, 2), n, -INFINITY);
    std::fill_n(at(x, 3), n - 8, -INFINITY);
    testing::for_each_isa([&] {
      for (int threads : {1, 2}) {
        Pool pool(threads);
        Stream s(pool);
        std::fill_n(at(y, 0), rows * n, 7.0f);
        Softmax::forward(s, y.tensor, x.tensor, {});
        for (std::int64_t r : {std::int64_t{0}, std::int64_t{1}, std::int64_t{2}, std::int64_t{3}, std::int64_t{4},
                               rows / 2 - 1, rows / 2, rows - 2, rows - 1}) {
          Softmax::forward(s, row.tensor, View(at(x, r), row.tensor.spec()), {});
          EXPECT_EQ(std::memcmp(at(row, 0), at(y, r), static_cast<std::size_t>(n) * sizeof(float)), 0)
              << threads << " threads, " << n << " columns, row " << r;
        }
      }
    });
  }
}

/// scale * x in units of log 2 exceeds a float where x does not: rows masked with the lowest float have equal results,
/// a single large element takes all. One register, several, blocks, exponentials computed twice; rows in turn.
TEST(Softmax, AsLargeAsFloatsAre) {
  Pool pool(2);
  Stream s(pool);
  const float most = std::numeric_limits<float>::max();
  testing::for_each_isa([&] {
    for (const auto& [rows, n] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 3}, {2, 70}, {2, 5000}, {1, 70000}, {4225, 1008}})
      for (const float scale : {1.0f, -1.0f})
        for (const float level : {most, -most}) {
          OwnedTensor x({{rows, n}, DType::f32}), y(x.tensor.spec());
          std::fill_n(x.tensor.ptr<float>(), rows * n, level);
          for (std::int64_t r = 1; r < rows; r += 2) x.tensor.ptr<float>()[r * n + 1] = scale * most;
          Softmax::forward(s, y.tensor, x.tensor, {.scale = scale});
          for (const std::int64_t r : {std::int64_t{0}, rows / 2, rows - 1}) {
            const bool one = r % 2 == 1 && level != scale * most;
            for (const std::int64_t c : {std::int64_t{0}, std::int64_t{1}, n - 1}) {
              const double want = one ? (c == 1 ? 1 : 0) : 1 / static_cast<double>(n);
              ASSERT_NEAR(y.tensor.ptr<float>()[r * n + c], want, 1e-5 * want)
                  << rows << "x" << n << " " << r << "," << c;
            }
          }
        }
  });
}

/// Columns masked by -inf contribute nothing, wherever the finite ones are; a row of only -inf has no softmax.
TEST(Softmax, MaskedBlocks) {
  for (std::int64_t n : {40, 5000, 70000}) {
    std::vector<float> x(static_cast<std::size_t>(n), -INFINITY), y(x.size());
    const Spec whole{{1, n}, DType::f32};
    Pool pool(1);
    Stream s(pool);
    Softmax::forward(s, Tensor(y.data(), whole), View(x.data(), whole), {});
    for (float v : y) ASSERT_TRUE(std::isnan(v));
    x.back() = x[x.size() - 2] = -300;
    Softmax::forward(s, Tensor(y.data(), whole), View(x.data(), whole), {});
    EXPECT_EQ(y.back(), 0.5f);
    EXPECT_EQ(y[x.size() - 2], 0.5f);
    for (std::size_t i = 0; i + 2 < y.size(); ++i) ASSERT_EQ(y[i], 0);
  }
}

/// Columns that causal rows do not see may hold anything: they are read neither forward nor backward, and the cost
/// counts them only as written.
TEST(Softmax, CausalRowsReadNoMoreThanTheySee) {
  std::vector<Device> devices{Device{}};
  if (cuda_devices() > 0) devices.push_back(Device::cuda(0));
  Pool pool(2);
  StepParams params;
  for (const auto& device : devices)
    for (const auto& [rows, cols] : {std::pair{5, 16}, {17, 33}, {64, 1024}, {3, 9001}, {2, 300000}}) {
      Stream s(device, pool, &params);
      const Spec shape{{2, rows, cols}, DType::f32};
      const auto n = static_cast<std::size_t>(shape.size());
      const auto sees = [&, rows = rows, cols = cols](std::size_t i) {
        return static_cast<std::int64_t>(i) % cols < static_cast<std::int64_t>(i) / cols % rows + cols - rows + 1;
      };
      const auto run = [&](float hidden, float before, bool accumulate) {  // y, then dx
        std::vector<float> x(n), dy(n), out(2 * n);
        for (std::size_t i = 0; i < n; ++i)
          x[i] = sees(i) ? static_cast<float>(i * 7919 % 1009) / 100 : hidden,
          dy[i] = sees(i) ? static_cast<float>(i * 31 % 17) : hidden;
        OwnedTensor in(shape, device), y(shape, device), up(shape, device), dx(shape, device);
        copy(s, in.tensor, View(x.data(), shape));
        copy(s, up.tensor, View(dy.data(), shape));
        Softmax::forward(s, y.tensor, in.tensor, {.scale = 0.5f, .causal = true});
        copy(s, Tensor(out.data(), shape), y.tensor);
        s.synchronize();
        for (std::size_t i = 0; i < n; ++i) x[i] = sees(i) ? out[i] : hidden, dy[i] = before;
        copy(s, in.tensor, View(x.data(), shape));
        copy(s, dx.tensor, View(dy.data(), shape));
        Softmax::backward(s, Grad(dx.tensor, accumulate ? Write::accumulate : Write::overwrite), in.tensor, up.tensor,
                          {.scale = 0.5f, .causal = true});
        copy(s, Tensor(out.data() + n, shape), dx.tensor);
        s.synchronize();
        return out;
      };
      for (bool accumulate : {false, true}) {
        const auto plain = run(0, 3, accumulate), poisoned = run(NAN, 3, accumulate);
        EXPECT_EQ(std::memcmp(plain.data(), poisoned.data(), 2 * n * sizeof(float)), 0) << rows << " x " << cols;
        for (std::size_t i = 0; i < n; ++i)
          if (!sees(i)) {
            ASSERT_EQ(plain[i], 0) << i;
            ASSERT_EQ(plain[n + i], accumulate ? 3 : 0) << i;
          }
      }
    }
  const Spec x{{3, 4, 6}, DType::bf16};  // rows see 3, 4, 5 and 6 of 6 columns
  EXPECT_EQ(Softmax::cost(x, {.causal = true}).reads, 3 * (18 - 24) * 2) << "beside all of x";
  EXPECT_EQ(Softmax::backward_cost(x, {.causal = true}).reads, 3 * 2 * (18 - 24) * 2) << "beside all of y and dy";
  EXPECT_EQ(Softmax::cost(x, {}).reads, 0);
  EXPECT_EQ(Softmax::backward_cost(x, {}).reads, 0);
}

#if HPCDL_CUDA
/// Rows that a cluster of blocks divides: in sequence, each has the same bits as alone. Lengths end inside a chunk, and
/// leave a block without a chunk.
TEST(Softmax, LongRowsOfAGpuDoNotTouchEachOther) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  StepParams params;
  Stream s(Device::cuda(0), pool, &params);
  for (std::int64_t n : {32776, 139264, 270344}) {
    const std::int64_t rows = 150;  // more than there are clusters
    OwnedTensor x({{rows, n}, DType::bf16}), back(x.tensor.spec()), there(x.tensor.spec(), s.device()),
        all(x.tensor.spec(), s.device());
    OwnedTensor alone({{1, n}, DType::bf16}, s.device());
    for (std::int64_t i = 0; i < rows * n; ++i)
      x.tensor.ptr<bf16>()[i] = bf16(static_cast<float>(i * 7919 % 1009) / 100);
    copy(s, there.tensor, x.tensor);
    Softmax::forward(s, all.tensor, there.tensor, {});
    copy(s, back.tensor, all.tensor);
    s.synchronize();
    OwnedTensor one({{1, n}, DType::bf16});
    for (std::int64_t r = 0; r < rows; ++r) {
      Softmax::forward(s, alone.tensor, View(there.tensor.ptr<bf16>() + r * n, alone.tensor.spec(), s.device()), {});
      copy(s, one.tensor, alone.tensor);
      s.synchronize();
      EXPECT_EQ(
          std::memcmp(one.tensor.data(), back.tensor.ptr<bf16>() + r * n, static_cast<std::size_t>(n) * sizeof(bf16)),
          0)
          << n << ", row " << r;
    }
  }
}
/// Thousands of rows, from an x that the preceding kernel has just written: every row equals its copy in a small
/// tensor, whose values are checked, and x does not change. The data is many times the size of L2.
TEST(Softmax, EveryOneOfThousandsOfLongRowsIsRight) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  StepParams params;
  Stream s(Device::cuda(0), pool, &params);
  constexpr std::int64_t kCols = 131072, kDistinct = 31;  // not a multiple of any number of clusters
  const auto check_all = [&]<class T>(std::int64_t rows, double relative) {
    const Spec few{{kDistinct, kCols}, dtype_of<T>}, many{{rows, kCols}, dtype_of<T>};
    OwnedTensor x(few), y(few), back(few), few_x(few, s.device()), few_y(few, s.device()), many_x(many, s.device()),
        many_y(many, s.device());
    for (std::int64_t i = 0; i < few.size(); ++i)
      x.tensor.ptr<T>()[i] = T(static_cast<float>(i * 7919 % 100003) / 10000);
    copy(s, few_x.tensor, x.tensor);
    Softmax::forward(s, few_y.tensor, few_x.tensor, {});
    copy(s, y.tensor, few_y.tensor);
    s.synchronize();
    for (std::int64_t r = 0; r < kDistinct; ++r) {
      const T *in = x.tensor.ptr<T>() + r * kCols, *out = y.tensor.ptr<T>() + r * kCols;
      double sum = 0;
      for (std::int64_t c = 0; c < kCols; ++c) sum += std::exp(static_cast<double>(static_cast<float>(in[c])));
      for (std::int64_t c = 0; c < kCols; ++c) {
        const double want = std::exp(static_cast<double>(static_cast<float>(in[c]))) / sum;
        ASSERT_NEAR(static_cast<float>(out[c]), want, want * relative) << r << ", " << c;
      }
    }
    const auto rows_at = [&](const OwnedTensor& t, std::int64_t r) {
      return Tensor(t.tensor.ptr<T>() + r * kCols, {{std::min(kDistinct, rows - r), kCols}, dtype_of<T>}, s.device());
    };
    const auto part = [&](const OwnedTensor& t, std::int64_t n) {
      return Tensor(t.tensor.data(), {{n, kCols}, dtype_of<T>}, t.tensor.device());
    };
    for (std::int64_t r = 0; r < rows; r += kDistinct)
      copy(s, rows_at(many_y, r), part(few_x, std::min(kDistinct, rows - r)));
    for (std::int64_t r = 0; r < rows; r += kDistinct)
      copy(s, rows_at(many_x, r), part(few_x, std::min(kDistinct, rows - r)));
    Softmax::forward(s, many_y.tensor, many_x.tensor, {});
    for (const auto& [all, want] : {std::pair{&many_y, &y}, {&many_x, &x}})
      for (std::int64_t r = 0; r < rows; r += kDistinct) {
        const std::int64_t n = std::min(kDistinct, rows - r);
        copy(s, part(back, n), rows_at(*all, r));
        s.synchronize();
        ASSERT_EQ(std::memcmp(back.tensor.data(), want->tensor.data(), static_cast<std::size_t>(n * kCols) * sizeof(T)),
                  0)
            << (all == &many_y ? "y" : "x") << ", rows " << r << " to " << r + n;
      }
  };
  check_all.operator()<bf16>(4096, 0x1p-8);
  check_all.operator()<float>(4096, 2e-5);
}
#endif

}  // namespace
}  // namespace hpcdl
