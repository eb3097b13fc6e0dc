// Models that ranks read from files, each its part: the same texts, and no more memory than its share.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "hpcdl/infer/engine_for_tests.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/models/quantize.h"
#include "hpcdl/testing/shared_model.h"

namespace hpcdl::infer {
namespace {

using models::LanguageModel;

io::ModelConfig config_of(io::Family family, bool tied) {
  io::ModelConfig c;
  c.family = family;
  c.layers = 2, c.heads = 8, c.width = 256, c.ffn = 384, c.context = 96, c.vocab = 301, c.tied = tied;
  if (family != io::Family::gpt2) c.kv_heads = 4;
  if (models::row_of(family).mixture) c.experts = 3, c.chosen_experts = 2;
  models::resolve(c);
  return c;
}

std::vector<std::int32_t> generated(const LanguageModel& model, Pool& pool, RankLink* ranks = nullptr) {
  Engine engine(model, pool, {.ranks = ranks});
  std::vector<std::int32_t> ids;
  engine.generate(ids_from(2, 30), 24, {.temperature = 0.8F, .seed = 4},
                  [&](std::int32_t id) { return ids.push_back(id), true; });
  return ids;
}

/// What a rank holds, but not norms and biases, is its share of the whole model.
void expect_share(const LanguageModel& part, const LanguageModel& whole, int ranks, bool whole_embedding) {
  const auto matrices = [&](const LanguageModel& m) {
    std::int64_t bytes = 0;
    m.state().for_each([&](const StateEntry& e) {
      const bool embedding = e.name.find("embed_tokens") != e.name.npos || e.name.find("wte") != e.name.npos;
      const bool positions = e.name.find("wpe") != e.name.npos, router = e.name.find("mlp.gate.") != e.name.npos;
      if (e.memory.rank() == 2 && !positions && !router && !(whole_embedding && embedding)) bytes += e.memory.bytes();
    });
    return static_cast<double>(bytes);
  };
  EXPECT_NEAR(matrices(part), matrices(whole) / ranks, 0.02 * matrices(whole));
}

void expect_texts_of_one_rank(const std::filesystem::path& folder, int ranks, bool quantised) {
  SCOPED_TRACE(fmt::format("{}, {} ranks", folder.filename().string(), ranks));
  Pool pool(2);
  const auto whole = LanguageModel::open(folder);
  const auto want = generated(whole, pool);
  testing::on_shared_model(
      ranks,
      [&](models::Sharing s) {
        auto model = LanguageModel::open(folder, std::move(s));
        expect_share(model, whole, ranks, quantised);
        return model;
      },
      [&](const LanguageModel& model, Pool& own, RankLink& link) { EXPECT_EQ(generated(model, own, &link), want); });
}

TEST(SharedFiles, ranks_read_their_parts_of_every_type) {
  const io::TempFolder temp;
  Pool pool(2);
  for (const auto family :
       {io::Family::gpt2, io::Family::llama, io::Family::phi3, io::Family::gemma2, io::Family::qwen3_moe})
    for (const DType type : {DType::f32, DType::bf16}) {
      auto model = LanguageModel::create(config_of(family, family == io::Family::gemma2), 5, false);
      for (auto& p : model.parameters())
        for (std::int64_t i = 0; p.param->decay && i < p.memory.size(); ++i) p.memory.ptr<float>()[i] *= 4;
      const auto folder = temp / fmt::format("{}_{}", io::enum_name(family), dtype_name(type));
      model.save(folder, type);
      for (const int ranks : {2, 4}) expect_texts_of_one_rank(folder, ranks, false);
      if (type != DType::f32) continue;
      const auto small = temp / fmt::format("{}_int4", io::enum_name(family));
      models::quantize_folder(pool, folder, small, {.options = {.group = 32}});
      expect_texts_of_one_rank(small, 2, true);
    }
}

TEST(SharedFiles, whole_groups_are_needed_of_quantised_inputs) {
  const io::TempFolder temp;
  Pool pool(1);
  LanguageModel::create(config_of(io::Family::llama, false), 5, false).save(temp / "whole");
  models::quantize_folder(pool, temp / "whole", temp / "int4", {.options = {.group = 128}});
  const auto errors = testing::rank_errors(4, [&](const comm::Group& world) {
    RankLink link(world);
    LanguageModel::open(temp / "int4", link.sharing());
  });
  EXPECT_NE(errors[0].find("which are not whole groups of 128: choose another number of ranks"), std::string::npos)
      << errors[0];
}

}  // namespace
}  // namespace hpcdl::infer
