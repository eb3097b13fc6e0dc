// The verifier on kernels of this test: how it describes a fault, how far it reduces the case, how it handles crashes
// and hangs. The corpus itself is a separate test (`hpcdl verify --planted`).

#include "tools/verify/verify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <utility>

#include "hpcdl/core/error.h"
#include "hpcdl/core/tolerance.h"
#include "tools/verify/operands.h"

namespace hpcdl::lab::verify {
namespace {

/// Adds two vectors, and does `extra(y, n)` afterwards.
template <class F> int add(const hpcdl_call* c, F extra) {
  const auto n = c->inputs[0].shape[0] * c->inputs[0].shape[1];
  const auto *a = static_cast<const float*>(c->inputs[0].data), *b = static_cast<const float*>(c->inputs[1].data);
  auto* y = static_cast<float*>(c->outputs[0].data);
  for (std::int64_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
  extra(y, n);
  return HPCDL_OK;
}
hpcdl_kernel kernel_of(int (*run)(const hpcdl_call*), std::uint32_t flags = 0) {
  return {"add", "test", HPCDL_TAKES_F32, flags, HPCDL_ON_CPU, run, nullptr, nullptr};
}
Verdict verdict_of(const hpcdl_kernel& k, Options o = {}) { return verify({linked_kernel(k)}, Roofs{}, o).at(0); }

Options without_speed() {
  Options o;
  o.patience = std::chrono::milliseconds(1500);
  return o;
}

/// With unlimited roofs no kernel seems too fast: only the five stages decide.
Verdict five_stages(const hpcdl_kernel& k) {
  Roofs fast;
  fast.f32 = fast.bf16 = fast.i8 = fast.memory_read = fast.memory_copy = fast.cache_read = 1e30;
  return verify({linked_kernel(k)}, fast, without_speed()).at(0);
}

TEST(verify, honest_kernel_passes) {
  const auto k = kernel_of([](const hpcdl_call* c) { return add(c, [](float*, std::int64_t) {}); },
                           HPCDL_IN_PLACE | HPCDL_SAME_BITS_ANY_THREADS);
  const auto v = five_stages(k);
  EXPECT_TRUE(v.ok()) << v.fault->what;
  for (const auto& s : v.stages) EXPECT_GT(s.cases, 0);
}

TEST(verify, fault_is_made_small_and_names_the_element) {
  const auto k = kernel_of([](const hpcdl_call* c) {
    return add(c, [](float* y, std::int64_t n) {
      if (n >= 21) y[20] = 1e9f;
    });
  });
  const auto v = five_stages(k);
  ASSERT_FALSE(v.ok());
  EXPECT_EQ(v.fault->at.dims[0] * v.fault->at.dims[1], 21);
  EXPECT_NE(v.fault->what.find("20] is 1e+09, expected "), std::string::npos) << v.fault->what;
  EXPECT_TRUE(v.fault->alone);
}

TEST(verify, fault_of_the_same_seed_is_the_same) {
  const auto k = kernel_of([](const hpcdl_call* c) {
    return add(c, [](float* y, std::int64_t n) {
      if (n % 16 == 3) y[n - 1] = 0;
    });
  });
  const auto a = five_stages(k), b = five_stages(k);
  ASSERT_FALSE(a.ok());
  EXPECT_EQ(a.fault->what, b.fault->what);
  EXPECT_EQ(to_string(a.fault->at, find_contract("add")), to_string(b.fault->at, find_contract("add")));
}

TEST(verify, crashes_and_hangs_are_verdicts) {
  auto crashing = kernel_of([](const hpcdl_call* c) {
    if (c->inputs[0].shape[1] == 7) __builtin_trap();
    return add(c, [](float*, std::int64_t) {});
  });
  auto hanging = kernel_of([](const hpcdl_call* c) {
    volatile bool wait = c->inputs[0].shape[1] == 7;
    while (wait) {}
    return add(c, [](float*, std::int64_t) {});
  });
  auto leaving = kernel_of([](const hpcdl_call* c) {
    if (c->inputs[0].shape[1] == 7) std::exit(0);
    return add(c, [](float*, std::int64_t) {});
  });
  const auto crash = five_stages(crashing), hang = five_stages(hanging), leave = five_stages(leaving);
  ASSERT_FALSE(crash.ok());
  EXPECT_TRUE(crash.fault->what.starts_with("crashed: ")) << crash.fault->what;
  EXPECT_EQ(crash.fault->at.dims[1], 7);
  EXPECT_EQ(crash.fault->at.dims[0], 1) << "the case was reduced";
  ASSERT_FALSE(hang.ok());
  EXPECT_TRUE(hang.fault->what.starts_with("hung: ")) << hang.fault->what;
  ASSERT_FALSE(leave.ok());
  EXPECT_EQ(leave.fault->at.dims[1], 7);
  EXPECT_EQ(leave.fault->at.dims[0], 1) << "the case was reduced";
  EXPECT_TRUE(leave.fault->alone);
}

/// Creating the inputs of a large case takes longer than a kernel may take.
TEST(verify, only_the_kernels_own_time_is_limited) {
  static bool own_work;
  static int limited, unlimited, times;  // calls of the kernel; periods of other work
  own_work = false, limited = unlimited = times = 0;
  const auto k = kernel_of([](const hpcdl_call* c) {
    ++(own_work ? unlimited : limited);
    return add(c, [](float*, std::int64_t) {});
  });
  const auto& contract = find_contract("add");
  for (const auto check : {Check::plain, Check::same_address, Check::time}) {
    Case c;
    c.check = check;
    c.set_size({3, 5});
    const auto limit = [](const Problem&, bool) { return 0.0; };
    const auto o = run_case(k, contract, c, limit, [&](bool own) { own_work = own, times += own; });
    EXPECT_EQ(o.fault, "");
    EXPECT_FALSE(own_work);
    EXPECT_EQ(unlimited, 0);
    EXPECT_GT(std::exchange(limited, 0), 0);
    EXPECT_GT(std::exchange(times, 0), 0);
  }
}

TEST(verify, output_of_a_kernel_is_not_a_result) {
  const auto k = kernel_of([](const hpcdl_call* c) {
    std::puts("a word of the kernel");
    return add(c, [](float*, std::int64_t) {});
  });
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  EXPECT_TRUE(five_stages(k).ok());
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_NE(testing::internal::GetCapturedStderr().find("a word of the kernel"), std::string::npos);
}

TEST(verify, kernel_that_declines_everything_is_not_verified) {
  for (const Contract& contract : contracts()) {
    auto k = kernel_of([](const hpcdl_call*) -> int { return HPCDL_UNSUPPORTED; }, HPCDL_IN_PLACE);
    k.contract = contract.name.data();
    const auto v = five_stages(k);
    ASSERT_FALSE(v.ok()) << contract.name;
    EXPECT_NE(v.fault->what.find("declined every case"), std::string::npos) << contract.name;
  }
}

TEST(verify, faster_than_light_is_a_fault) {
  const auto k = kernel_of([](const hpcdl_call* c) { return add(c, [](float*, std::int64_t) {}); });
  Options o = without_speed();
  o.only = Stage::speed;
  Roofs slow;  // a machine on which the sum takes minutes; when measured again, it is this machine
  slow.f32 = slow.bf16 = slow.i8 = slow.memory_read = slow.memory_copy = slow.cache_read = 1e3;
  EXPECT_TRUE(verify({linked_kernel(k)}, slow, o).at(0).ok());
  const auto nothing = kernel_of([](const hpcdl_call*) -> int { return HPCDL_OK; });
  const auto v = verify({linked_kernel(nothing)}, slow, o).at(0);
  ASSERT_FALSE(v.ok());
  EXPECT_NE(v.fault->what.find("speed of light"), std::string::npos) << v.fault->what;
}

TEST(verify, unknown_names_suggest_the_nearest) {
  try {
    find_contract("sofmax");
    FAIL();
  } catch (const UsageError& e) {
    EXPECT_NE(std::string(e.what()).find("softmax"), std::string::npos);
  }
  EXPECT_THROW(stage_from_name("smok"), UsageError);
  auto k = kernel_of([](const hpcdl_call*) -> int { return 0; });
  k.contract = "ad";
  EXPECT_THROW(verdict_of(k), UsageError);
}

TEST(verify, invalid_libraries_are_clear_errors) {
  EXPECT_THROW(library_kernels("no/such/library.so"), Error);
  EXPECT_THROW(library_kernels(HPCDL_SOURCE_DIR "/README.md"), Error);
}

/// Contracts are complete, and their references are finite on ordinary data and within their own tolerance of
/// themselves.
TEST(contracts, are_whole) {
  std::set<std::string_view> names;
  for (const auto& c : contracts()) {
    EXPECT_TRUE(names.insert(c.name).second) << c.name;
    EXPECT_GT(c.shapes.size(), 5u) << c.name;
    const auto counts_rows = [&](const Dim& d) { return d.name == c.rows; };
    EXPECT_TRUE(c.rows == contract::kNoRows || std::any_of(c.dims.begin(), c.dims.end(), counts_rows)) << c.name;
    for (int v = 0; v < c.variants; ++v)
      for (DType t : {DType::f32, DType::bf16, DType::f16}) {
        Case one;
        one.dtype = t, one.variant = v, one.seed = 3;
        one.set_size(c.typical);
        const auto p = c.problem(c.typical, t, v);
        ASSERT_EQ(p.in.size(), c.inputs.size()) << c.name;
        ASSERT_EQ(p.out.size(), c.outputs.size()) << c.name;
        const auto in = make_inputs(c, p, one);
        EXPECT_GE(c.reduction(p), 0) << c.name;
        EXPECT_GT(c.cost(p).bytes(), 0) << c.name;
        for (const auto& e : expect(c, p, in))
          for (std::size_t i = 0; i < e.value.size(); ++i) {
            ASSERT_TRUE(std::isfinite(e.value[i])) << c.name << " " << i;
            ASSERT_TRUE(e.scale[i] >= 0 && std::isfinite(e.scale[i])) << c.name << " " << i;
          }
      }
  }
}

TEST(contracts, every_one_has_a_kernel_of_ours) {
  std::set<std::string> have;
  for (const auto& s : own_kernels()) have.insert(s.contract);
  for (const auto& c : contracts()) EXPECT_TRUE(have.count(std::string(c.name))) << c.name;
}

}  // namespace
}  // namespace hpcdl::lab::verify
