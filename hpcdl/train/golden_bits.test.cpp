// The bits of weights and optimizer after a few steps of small runs, as they were before programs became data. They
// depend on the instruction set and on how the compiler contracts floating point, so other builds skip. The rows of
// AdamW were recorded again when 1 - beta became a double: with only that change undone, all had the old bits.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hpcdl/models/image_model.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/tiny_for_tests.h"
#include "hpcdl/parallel/tensor.h"
#include "hpcdl/simd/isa.h"
#include "hpcdl/testing/ranks.h"
#include "hpcdl/train/train_step.h"

namespace hpcdl::train {
namespace {

#if defined(__GNUC__) && !defined(__clang__) && defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
constexpr bool kSameBits = true;
#else
constexpr bool kSameBits = false;
#endif

constexpr int kSteps = 4;

std::uint64_t hash(std::uint64_t h, const View& t) {
  const auto* p = t.ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < t.bytes(); ++i) h = (h ^ p[i]) * 0x100000001B3u;
  return h;
}

/// Weights, buffers and optimizer state.
std::uint64_t hash(TrainStep& step) {
  step.fetch();
  std::uint64_t h = 0xCBF29CE484222325u;
  for (const auto& list : {step.weights(), step.optimizer_state()})
    for (const auto& t : list) h = hash(h, t.tensor);
  return h;
}

struct Run {
  std::string name;
  std::function<std::uint64_t()> bits;
  std::array<std::uint64_t, 3> want;  // scalar, avx2, avx512
};

struct Text {
  io::Family family = io::Family::gpt2;
  nn::ForwardOptions forward = {};
  bool copies = false, scaled = false;
  std::int64_t micros = 1;
  int dp = 1, tp = 1;
  parallel::TensorParallel::Scheme scheme = parallel::TensorParallel::conjugate;
};

std::uint64_t bits_of(const Text& o) {
  std::vector<std::uint64_t> of_rank(static_cast<std::size_t>(o.dp * o.tp));
  testing::run_ranks(o.dp * o.tp, [&](const comm::Group& world) {
    const int d = world.rank() / o.tp;
    const auto data = world.split(world.rank() % o.tp, d, "dp"), tensor = world.split(d, world.rank() % o.tp, "tp");
    models::Sharing sharing;
    if (o.tp > 1) sharing = std::make_shared<parallel::TensorParallel>(tensor, o.scheme);
    auto model = models::LanguageModel::create(models::tiny(o.family), 7, true, sharing);
    Pool pool(1);
    StepOptions options{.batch = 2, .length = 16, .accumulate = o.micros > 1, .forward = o.forward, .data = data};
    options.reduce.buckets = {.cap = 8 << 10, .first = 4 << 10};
    if (o.copies) options.copies = true;
    if (o.scaled) options.scaler = GradScaler::Options{};
    TrainStep step(model, pool, options);
    for (int i = 0; i < kSteps; ++i) {
      for (std::int64_t m = 0; m < o.micros; ++m) {
        const auto seed = static_cast<std::uint32_t>(100 * i + 10 * m + d);
        step.accumulate(models::tiny_ids(seed), models::tiny_ids(seed + 1000), i, m, m + 1 == o.micros);
      }
      step.update(1e-2, 32 * o.micros);
    }
    of_rank[static_cast<std::size_t>(world.rank())] = hash(step);
  });
  std::uint64_t all = 0;
  for (const auto h : of_rank) all = std::rotl(all, 7) ^ h;
  return all;
}

std::uint64_t bits_of_images(models::ImageFamily family, int dp) {
  std::vector<std::uint64_t> of_rank(static_cast<std::size_t>(dp));
  testing::run_ranks(dp, [&](const comm::Group& world) {
    const models::ImageConfig c{.family = family, .classes = 5, .size = 8, .width = 4};
    auto model = models::ImageModel::create(c, 3, true);
    Pool pool(1);
    TrainStep step(model, pool,
                   {.batch = 4, .optimizer = Sgd::Args{.momentum = 0.9f}, .data = world, .share_batch = dp > 1});
    for (int i = 0; i < kSteps; ++i) {
      std::vector<float> images(static_cast<std::size_t>(4 * 3 * model.config().size * model.config().size));
      std::vector<std::int32_t> targets(4);
      auto x = static_cast<std::uint32_t>(17 * i + world.rank());
      for (auto& v : images) v = static_cast<float>((x = x * 1664525u + 1013904223u) >> 8) * 0x1p-23f - 1.0f;
      for (auto& t : targets) t = static_cast<std::int32_t>((x = x * 1664525u + 1013904223u) >> 16) % 5;
      const View in[] = {View(images.data(), step.inputs()[0].spec), View(targets.data(), step.inputs()[1].spec)};
      step.accumulate(in, i, 0);
      step.update(1e-2, 4);
    }
    of_rank[static_cast<std::size_t>(world.rank())] = hash(step);
  });
  std::uint64_t all = 0;
  for (const auto h : of_rank) all = std::rotl(all, 7) ^ h;
  return all;
}

std::vector<Run> runs() {
  using enum io::Family;
  using enum simd::IsaKind;
  using TP = parallel::TensorParallel;
  const nn::ForwardOptions half{.compute = DType::bf16}, again{.recompute = true, .dropout = 0.1f};
  const auto text = [](const Text& o) { return [o] { return bits_of(o); }; };
  const auto images = [](models::ImageFamily f, int dp) { return [f, dp] { return bits_of_images(f, dp); }; };
  return {
      {"gpt2", text({}), {0x1D3FE6B1D2D4C736u, 0xB6DAC7335E0CEF01u, 0xCAF611E55F0AFA02u}},
      {"llama", text({.family = llama}), {0x0FACB153953EA990u, 0x3954FF484762D421u, 0x9F0131913D2D4346u}},
      {"gpt2 bf16, copies, accumulate",
       text({.forward = half, .copies = true, .micros = 3}),
       {0x843E61DCE3DBB2AEu, 0xF61AFE41E24EA7C3u, 0xE150C29295034B5Eu}},
      {"llama bf16, scaled loss",
       text({.family = llama, .forward = half, .scaled = true}),
       {0x3E02DC87A3AD65D0u, 0xCEBB33623BBAA587u, 0x7757ED1A9B342726u}},
      {"gpt2 recompute, dropout, accumulate",
       text({.forward = again, .micros = 2}),
       {0x11345D3CB9A381C7u, 0xD8500BDCBD6A2DE7u, 0xC6E474FA2520D738u}},
      {"gpt2 dp 2", text({.dp = 2}), {0xD4AB5493DE1AE898u, 0x2BBCCC0626E02D79u, 0xC94FEB4501721D64u}},
      {"llama dp 2, accumulate",
       text({.family = llama, .micros = 2, .dp = 2}),
       {0x4F59A1C2E273AE16u, 0x2D244D572C89CCABu, 0x5F3B29FC9E36FD17u}},
      {"gpt2 tp 2", text({.tp = 2}), {0xA892E05884A7BCA3u, 0x52960E9F65D1DB1Bu, 0xF8E7C1F02AE5CF64u}},
      {"llama tp 2, sequence",
       text({.family = llama, .tp = 2, .scheme = TP::sequence}),
       {0x310ACD67EB794093u, 0x10145DA2236A0D67u, 0x0D29175C69383C5Eu}},
      {"gpt2 tp 2, naive",
       text({.tp = 2, .scheme = TP::naive}),
       {0xA3F6B5EF09ECBA2Eu, 0x624993B89D36DE44u, 0x82B53186C7288CBAu}},
      {"llama dp 2, tp 2, bf16, recompute",
       text({.family = llama, .forward = {.compute = DType::bf16, .recompute = true}, .dp = 2, .tp = 2}),
       {0x104497409357E2AFu, 0xB2F16FFED4C8B950u, 0x0752533433DAB147u}},
      {"resnet18",
       images(models::ImageFamily::resnet18, 1),
       {0x3F0347E51C272808u, 0x1F423BE86A52B41Du, 0x2BBF565DD1A4CCADu}},
      {"resnet18 dp 2, batch norm over both",
       images(models::ImageFamily::resnet18, 2),
       {0x284F134D35E809A3u, 0x4F8ADAD2E0420514u, 0x2D020866EE481E53u}},
      {"simple_cnn",
       images(models::ImageFamily::simple_cnn, 1),
       {0xFACD0BC8C8CD287Au, 0xB72D39C83BC2723Au, 0x4F73C2B874201E61u}},
  };
}

TEST(golden, weights_have_the_bits_that_they_had) {
  if (!kSameBits) GTEST_SKIP() << "SKIPPED: the bits are those of a GCC release build";
  const auto before = simd::active_isa();
  for (const auto k : {simd::IsaKind::scalar, simd::IsaKind::avx2, simd::IsaKind::avx512}) {
    if (!simd::set_active_isa(k)) continue;
    for (const auto& r : runs())
      EXPECT_EQ(fmt::format("{:016X}", r.bits()), fmt::format("{:016X}", r.want[static_cast<std::size_t>(k)]))
          << r.name << ", " << simd::isa_name(k);
  }
  simd::set_active_isa(before);
}

}  // namespace
}  // namespace hpcdl::train
