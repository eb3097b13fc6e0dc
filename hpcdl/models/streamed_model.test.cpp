// Weights that are read in other ways than by mapping their files give the same bits.

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <string_view>

#include "hpcdl/core/error.h"
#include "hpcdl/infer/engine.h"
#include "hpcdl/infer/evaluate.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/loaded_weights.h"
#include "hpcdl/models/quantize.h"
#include "hpcdl/models/tiny_for_tests.h"
#include "hpcdl/testing/devices.h"

namespace hpcdl::models {
namespace {

namespace fs = std::filesystem;
using io::LoadMode;

io::ModelConfig with_layers(io::Family family, std::int64_t layers, bool tied) {
  auto c = tiny(family);
  c.layers = layers, c.width = 64, c.ffn = 96, c.head_dim = 0, c.tied = tied, c.sliding.clear();
  resolve(c);
  return c;
}

/// Bits of a loss, and of generated texts.
struct Results {
  std::vector<float> logprobs;
  std::vector<std::int32_t> tokens;
  double loss = 0;
  bool operator==(const Results&) const = default;
};

Results results(const LanguageModel& model, Pool& pool) {
  Results r;
  const auto ids = tiny_ids(3);
  infer::Engine engine(model, pool, {.context = 16, .sequences = 2, .budget = 128});
  for (const std::size_t prompt : {3, 9}) {
    infer::Request request{.prompt = {ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(prompt)}, .tokens = 6};
    request.sampling.logprobs = 3, request.sampling.ignore_eos = true;
    request.on_token = [&](const infer::Token& t) {
      r.tokens.push_back(t.id), r.logprobs.push_back(t.logprob);
      return true;
    };
    engine.submit(std::move(request));
  }
  engine.run();
  r.loss = infer::evaluate(model, pool, ids).loss;
  return r;
}

/// The model on a device, with so many bytes of its memory for weights.
LanguageModel on_device(const fs::path& folder, const Stream& s, std::int64_t vram) {
  auto model = LanguageModel::open(folder, {}, {.vram = vram});
  model.to_device(s);
  return model;
}

/// The least memory for weights, as the error says it: of the device of a stream, or where files are read into.
std::int64_t least(const fs::path& folder, const Stream* s = nullptr) {
  try {
    if (s) on_device(folder, *s, 1);
    else LanguageModel::open(folder, {}, {LoadMode::direct, 1});
  } catch (const Error& e) {
    const std::string text = e.what();
    return std::stoll(text.substr(text.find('(') + 1));
  }
  return 0;
}

void expect_same_bits(const fs::path& folder, std::int64_t layers) {
  Pool pool(2);
  const auto want = results(LanguageModel::open(folder), pool);
  EXPECT_EQ(want.tokens.size(), 12u);
  const auto resident = LanguageModel::open(folder, {}, {LoadMode::resident});
  EXPECT_TRUE(resident.loading().starts_with("resident: all ")) << resident.loading();
  EXPECT_EQ(results(resident, pool), want);
  const auto low = least(folder), all = resident.mapped_bytes();
  for (const auto ram : {low, low + (all - low) * 2 / 3}) {
    const auto model = LanguageModel::open(folder, {}, {LoadMode::direct, ram});
    const auto& how = model.loading();
    if (const bool of_experts = how.starts_with("direct: experts"); !of_experts) {
      EXPECT_EQ(how.starts_with(fmt::format("direct: {} of {} layers", layers, layers)), ram == low) << how;
    }
    EXPECT_EQ(results(model, pool), want) << ram;
    EXPECT_EQ(results(model, pool), want) << "again: " << ram;
  }
}

/// Layers that stay on the host, of a model on each device of this machine that can compute it.
void expect_same_bits_from_host(const fs::path& folder, std::int64_t layers, bool on_gpus) {
  Pool pool(2);
  for (const Device device : testing::devices()) {
    if (device.is_cuda() && !on_gpus) continue;
    const Stream s(device, pool);
    const auto want = results(on_device(folder, s, 0), pool);
    const auto low = least(folder, &s), all = LanguageModel::open(folder).mapped_bytes();
    for (const auto vram : {low, low + (all - low) * 2 / 3, 2 * all}) {
      const auto model = on_device(folder, s, vram);
      EXPECT_EQ(model.loading().starts_with(fmt::format("{} of {} layers stay on the host", layers, layers)),
                vram == low)
          << model.loading();
      EXPECT_EQ(results(model, pool), want) << vram;
      EXPECT_EQ(results(model, pool), want) << "again: " << vram;
    }
  }
}

class StreamedModel : public ::testing::TestWithParam<io::Family> {};

TEST_P(StreamedModel, has_the_bits_of_the_mapped_one) {
  const auto family = GetParam();
  Pool pool(2);
  for (const bool tied : {false, true}) {
    const io::TempFolder temp;
    const auto c = with_layers(family, tied ? 7 : 6, tied);
    const auto model = LanguageModel::create(c, 11, false);
    model.save(temp / "f32");
    model.save(temp / "bf16", DType::bf16);
    quantize_folder(pool, temp / "bf16", temp / "int4", {.options = {.group = 32, .search = false}});
    for (const char* name : {"f32", "bf16", "int4"}) {
      SCOPED_TRACE(std::string(name) + (tied ? ", tied" : ""));
      expect_same_bits(temp / name, c.layers);
      // A GPU has no products of experts in bf16 with activations in f32.
      expect_same_bits_from_host(temp / name, c.layers, !row_of(family).mixture || std::string_view(name) != "bf16");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, StreamedModel,
                         ::testing::Values(io::Family::gpt2, io::Family::llama, io::Family::gemma2, io::Family::phi3,
                                           io::Family::mixtral, io::Family::qwen3_moe),
                         [](const auto& family) { return std::string(io::enum_name(family.param)); });

class StreamedFolder : public ::testing::Test {
 protected:
  StreamedFolder() { LanguageModel::create(with_layers(io::Family::llama, 4, true), 1, false).save(temp_.path()); }
  io::TempFolder temp_;
};

TEST_F(StreamedFolder, fetches_and_releases_each_layer_once_a_pass) {
  const auto model = LanguageModel::open(temp_.path(), {}, {LoadMode::direct, least(temp_.path())});
  Graph g({.inference = true});
  model.logits(g, g.input("tokens", {{1, 4}, DType::i32}));
  int fetched = 0, released = 0;
  for (const auto& r : g.program().records) {
    fetched += r.op == "layer.fetch", released += r.op == "layer.release";
    EXPECT_LE(fetched - released, 1);
    EXPECT_GE(fetched - released, 0);
  }
  EXPECT_EQ(fetched, 4);
  EXPECT_EQ(released, 4);
}

TEST(streamed_experts, are_read_when_tokens_choose_them) {
  for (const auto family : {io::Family::mixtral, io::Family::qwen3_moe}) {
    SCOPED_TRACE(io::enum_name(family));
    const io::TempFolder temp;
    auto c = with_layers(family, 5, false);
    c.experts = 12, c.chosen_experts = 2;
    LanguageModel::create(c, 5, false).save(temp.path());
    Pool pool(2);
    const auto mapped = LanguageModel::open(temp.path());
    const auto want = results(mapped, pool);
    int with_cache = 0;
    const auto low = least(temp.path()), all = mapped.mapped_bytes();
    for (int i = 1; i < 8; ++i) {
      const auto ram = low + (all - low) * i / 8;
      const auto model = LanguageModel::open(temp.path(), {}, {LoadMode::direct, ram});
      if (!model.loading().starts_with("direct: experts are read when tokens choose them")) continue;
      ++with_cache;
      EXPECT_EQ(results(model, pool), want) << ram;
      EXPECT_EQ(results(model, pool), want) << "again: " << ram;
      for (const bool many : {false, true}) {
        Graph g({.inference = true});
        model.logits(g, g.input("tokens", {{1, many ? 12 : 1}, DType::i32}));
        std::int64_t fetched = 0;
        for (const auto& r : g.program().records) {
          fetched += r.op == "experts.fetch";
          EXPECT_NE(r.op, "layer.fetch");
        }
        EXPECT_EQ(fetched, c.layers);
      }
    }
    EXPECT_GE(with_cache, 2);
  }
}

TEST_F(StreamedFolder, goes_on_after_a_pass_that_failed) {
  Pool pool(2);
  const auto want = results(LanguageModel::open(temp_.path()), pool);
  const auto model = LanguageModel::open(temp_.path(), {}, {LoadMode::direct, least(temp_.path())});
  infer::Engine engine(model, pool, {.context = 8});
  const auto file = io::read_file(temp_ / "model.safetensors");
  const std::vector<std::int32_t> prompt{1, 2, 3};
  fs::resize_file(temp_ / "model.safetensors", 4096);
  EXPECT_THROW(engine.generate(prompt, 4, {}, [](auto) { return true; }), Error);
  std::fstream(temp_ / "model.safetensors", std::ios::binary | std::ios::in | std::ios::out)
      .write(file.data(), static_cast<std::streamsize>(file.size()));
  EXPECT_EQ(results(model, pool), want);
}

TEST_F(StreamedFolder, refuses_what_it_cannot_do) {
  EXPECT_THROW(LanguageModel::open(temp_.path(), {}, {LoadMode::mapped, 1 << 20}), UsageError);
  EXPECT_THROW(LanguageModel::open(temp_.path(), {}, {LoadMode::resident, 1000}), Error);
  EXPECT_GT(least(temp_.path()), 0);
}

}  // namespace
}  // namespace hpcdl::models
