// In row-invariant programs of a GPU a text has the bits that it has alone.

#include <gtest/gtest.h>

#include <deque>

#include "hpcdl/core/error.h"
#include "hpcdl/infer/engine_for_tests.h"
#include "hpcdl/models/family.h"

namespace hpcdl::infer {
namespace {

io::ModelConfig config_of(io::Family family, DType type) {
  io::ModelConfig c;
  c.family = family, c.dtype = type;
  c.layers = 3, c.heads = 8, c.width = 256, c.ffn = 512, c.context = 512, c.vocab = 1000;
  if (family != io::Family::gpt2) c.kv_heads = 2;
  models::resolve(c);
  return c;
}

struct GpuInvariant : ::testing::TestWithParam<std::tuple<io::Family, DType>> {
  void SetUp() override {
    if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  }
};

std::vector<Request> some_requests() {
  std::vector<Request> list;
  for (int i = 0; i < 9; ++i) {
    Request r{.prompt = ids_from(i % 4, 1 + 57 * i % 190), .tokens = 30, .sampling = {.logprobs = 0}};
    if (i % 3 == 1) r.sampling.temperature = 0.8F, r.sampling.seed = 5;
    list.push_back(std::move(r));
  }
  return list;
}

TEST_P(GpuInvariant, texts_have_the_bits_that_they_have_alone) {
  const auto [family, type] = GetParam();
  Pool pool(2);
  auto model = models::LanguageModel::random(pool, config_of(family, type), 3);
  model.to_device(Stream(Device::cuda(0), pool));
  const auto requests = some_requests();
  for (const DType kv : {DType::none, DType::i8})
    for (const bool speculates : {false, true}) {
      const EngineOptions options{.sequences = 6,
                                  .budget = 100,
                                  .kv = kv,
                                  .speculation = {.ngrams = speculates},
                                  .numerics = {.row_invariant = true}};
      Engine engine(model, pool, options);
      std::deque<Heard> heard(requests.size());
      for (std::size_t i = 0; i < requests.size(); ++i) submit(engine, requests[i], heard[i]);
      engine.run();
      for (std::size_t i = 0; i < requests.size(); ++i) {
        SCOPED_TRACE(fmt::format("text {}, keys in {}, speculation {}", i, dtype_name(kv), speculates));
        Engine own(model, pool, {.sequences = 1, .budget = 400, .kv = kv, .numerics = {.row_invariant = true}});
        Heard alone;
        submit(own, requests[i], alone);
        own.run();
        EXPECT_EQ(heard[i].end.message, "");
        EXPECT_EQ(heard[i].ids, alone.ids);
        EXPECT_EQ(heard[i].logprobs, alone.logprobs);
      }
    }
}

INSTANTIATE_TEST_SUITE_P(some, GpuInvariant,
                         ::testing::Combine(::testing::Values(io::Family::llama, io::Family::gpt2, io::Family::gemma2),
                                            ::testing::Values(DType::bf16, DType::f32)),
                         [](const auto& p) {
                           return fmt::format("{}_{}", io::enum_name(std::get<0>(p.param)),
                                              dtype_name(std::get<1>(p.param)));
                         });

}  // namespace
}  // namespace hpcdl::infer
