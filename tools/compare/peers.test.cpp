#include "tools/compare/peers.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "tools/compare/case_bench.h"
#include "tools/shared_library.h"

namespace hpcdl::lab::compare {
namespace {

Case one(const std::string& op, const std::string& shape, DType dtype = DType::f32, bool backward = false) {
  for (const auto& c : cases_at({op}, shape))
    if (c.op == op && c.dtype == dtype && c.backward == backward) return c;
  ADD_FAILURE() << "no case " << op;
  return {};
}

TEST(product, is_what_the_case_multiplies) {
  const CaseRun tn(one("matmul+tn", "3x5x7"));
  const auto p = product_of(tn);
  ASSERT_TRUE(p);
  EXPECT_EQ(std::tuple(p->m, p->n, p->k), std::tuple(3, 5, 7));
  EXPECT_TRUE(p->transpose_a);
  EXPECT_FALSE(p->transpose_b);
  EXPECT_EQ(p->lda(), 3);
  EXPECT_EQ(p->ldb(), 5);
  const CaseRun linear(one("linear", "3x5x7", DType::bf16));
  ASSERT_TRUE(product_of(linear));
  EXPECT_TRUE(product_of(linear)->transpose_b);
  EXPECT_EQ(product_of(linear)->dtype, DType::bf16);
  for (const auto& c : {one("linear+bias", "3x5x7"), one("linear+bias_relu", "3x5x7"),
                        one("matmul", "3x5x7", DType::f32, true), one("softmax", "3x5")})
    EXPECT_FALSE(product_of(CaseRun(c))) << case_label(c);
}

TEST(library, that_is_not_there_says_so) {
  const SharedLibrary none({"libno-such-library.so.1", "libno-such-library.so"});
  EXPECT_FALSE(none);
  EXPECT_NE(none.error().find("libno-such-library.so.1 or libno-such-library.so"), std::string::npos) << none.error();
  EXPECT_EQ(none.function<void()>("f"), nullptr);
  EXPECT_THROW(none.needed<void()>("f"), Error);
  EXPECT_NE(SharedLibrary({"libno-such-library.so", "libc.so.6"}).path().find('/'), std::string::npos);
}

class LibraryPeer : public testing::TestWithParam<std::string> {};

TEST_P(LibraryPeer, computes_what_we_compute) {
  const Peer peer = library_peer(GetParam(), 2);
  EXPECT_EQ(peer.name, GetParam());
  if (!peer.missing.empty()) GTEST_SKIP() << peer.missing;
  EXPECT_FALSE(peer.version.empty());
  EXPECT_FALSE(peer.file.empty());
  Pool pool(2);
  Stream stream(pool);
  for (const char* op : {"matmul", "matmul+nt", "matmul+tn", "linear"})
    for (const char* shape : {"33x65x47", "1x96x200", "128x64x1"}) {
      const Case c = one(op, shape);
      const CaseRun run(c);
      run.run(stream);
      const Offer o = peer.offer(c, run);
      ASSERT_TRUE(o.call) << o.missing;
      o.call();
      const auto p = *product_of(run);
      EXPECT_LE(difference(p, *o.result), rounding(p)) << op << ' ' << shape;
      reinterpret_cast<float*>(o.result->data())[p.m * p.n / 2] += 1e3f;
      EXPECT_GT(difference(p, *o.result), rounding(p)) << "one wrong element must be detected";
    }
  const auto missing = [&](const Case& c) { return peer.offer(c, CaseRun(c)).missing; };
  EXPECT_FALSE(missing(one("softmax", "4x8")).empty());
  EXPECT_NE(missing(one("matmul", "4x8x8", DType::bf16)).find("f32"), std::string::npos);
}
INSTANTIATE_TEST_SUITE_P(all, LibraryPeer, testing::ValuesIn(library_peers()),
                         [](const auto& test) { return test.param; });

TEST(gpu_library_peer, computes_what_it_can_and_says_what_it_cannot) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  Stream s(Device::cuda(0), pool);
  const auto offered = [&](const std::string& name, const Case& c) {
    Offer o = gpu_library_peer(name, s).offer(c, CaseRun(c, nullptr, &s));
    EXPECT_EQ(bool{o.call}, o.missing.empty()) << o.missing;
    if (o.call) o.call(), s.synchronize();
    return bool{o.call};
  };
  EXPECT_TRUE(offered("cublaslt", one("linear", "64x128x256", DType::bf16, true)));
  EXPECT_TRUE(offered("cublaslt", one("int4_linear", "64x128x256", DType::bf16)));
  EXPECT_FALSE(offered("cublaslt", one("softmax", "4x8")));
  EXPECT_TRUE(offered("cudnn", one("attention", "1x2x256x64", DType::bf16)));
  EXPECT_FALSE(offered("cudnn", one("linear", "64x128x256", DType::bf16)));
}

/// A clock on which every call takes one millisecond.
class Millisecond : public Environment {
 public:
  double now() override { return time_ += 1e-9; }
  void synchronize() override {}
  void flush() override {}
  void sleep(double) override {}
  std::string flush_method() const override { return "not at all"; }
  double time(const std::function<void()>& call, int calls) override {
    call();
    return time_ += 1e-3 * calls, 1e-3 * calls;
  }

 private:
  double time_ = 0;
};

TEST(case_bench, faster_than_light_is_a_fault_and_no_win) {
  Pool pool(2);
  Millisecond clock;
  Roofs roofs{.f32 = 1e12,
              .bf16 = 1e12,
              .i8 = 1e12,
              .memory_read = 1e9,
              .memory_copy = 1e9,
              .cache_read = 1e9,
              .cache_bytes = 0,
              .caches = {}};
  const Case c = one("relu", "64x128");  // 65536 bytes, 65.5 us of light
  auto good = bench_case(c, Stream(pool), clock, roofs, {}, {.rounds = 3});
  EXPECT_NEAR(good.score(), 0.0655, 1e-3);
  EXPECT_EQ(good.fault(), "");
  EXPECT_FALSE(good.compute_bound);
  auto j = to_json(good);
  EXPECT_FALSE(j.contains("fault"));
  EXPECT_NEAR(j["gbps"].get<double>(), 0.0655, 1e-3);

  good.result.sides.push_back(good.result.sides[0]);
  good.result.sides[1].name = "peer";
  EXPECT_NEAR(to_json(good)["ratios"]["peer"]["median"].get<double>(), 1, 1e-9);
  good.light = 1.2e-3;
  EXPECT_NE(good.fault(), "");
  j = to_json(good);
  EXPECT_NE(j["fault"].get<std::string>().find("above the speed of light by 20 %"), std::string::npos) << j["fault"];
  EXPECT_FALSE(j.contains("ratios"));
}

TEST(case_bench, cold_light_comes_from_memory) {
  const CaseRun run(one("relu", "64x128"));
  const Roofs roofs{.f32 = 1e15,
                    .bf16 = 1e15,
                    .i8 = 1e15,
                    .memory_read = 1e9,
                    .memory_copy = 1e9,
                    .cache_read = 4e9,
                    .cache_bytes = 1e6,
                    .caches = {}};
  EXPECT_NEAR(light_of(run.program(), roofs, Cache::flushed).seconds,
              4 * light_of(run.program(), roofs, Cache::warm).seconds, 1e-12);
}

TEST(case_bench, a_missing_peer_is_named_and_one_that_is_wrong_stops_everything) {
  Pool pool(2);
  Millisecond clock;
  const Roofs roofs{.f32 = 1e12,
                    .bf16 = 1e12,
                    .i8 = 1e12,
                    .memory_read = 1e9,
                    .memory_copy = 1e9,
                    .cache_read = 1e9,
                    .cache_bytes = 0,
                    .caches = {}};
  Peer absent;
  absent.name = "absent", absent.missing = "not installed";
  Peer zeros;
  zeros.name = "zeros";
  zeros.offer = [](const Case&, const CaseRun& run) {
    const auto p = product_of(run);
    if (!p) return Offer{.call = {}, .result = {}, .missing = "products only"};
    return Offer{.call = [] {}, .result = std::make_shared<Buffer>(p->m * p->n * 4), .missing = {}};
  };
  const auto b = bench_case(one("relu", "8x8"), Stream(pool), clock, roofs, {absent, zeros}, {.rounds = 3});
  EXPECT_EQ(b.missing.at("absent"), "not installed");
  EXPECT_EQ(b.missing.at("zeros"), "products only");
  EXPECT_EQ(b.result.sides.size(), 1u);
  EXPECT_THROW(bench_case(one("matmul", "8x8x8"), Stream(pool), clock, roofs, {zeros}, {.rounds = 3}), Error);
}

}  // namespace
}  // namespace hpcdl::lab::compare
