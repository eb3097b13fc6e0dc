#include "hpcdl/models/choose_formats.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/infer/evaluate.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/quantize.h"
#include "hpcdl/quant/codecs.h"

namespace hpcdl::models {
namespace {

struct ChooseFormats : ::testing::Test {
  ChooseFormats() {
    io::ModelConfig c{.family = io::Family::llama, .layers = 1, .heads = 4, .width = 256, .context = 32, .vocab = 70};
    c.ffn = 352, c.tied = false;  // rows of 352 are no whole blocks of rot3
    resolve(c);
    LanguageModel::create(c, 5, false).save(from);
    for (int i = 0; i < 96; ++i) tokens.push_back(i * 31 % 70);
    options.options.group = 32;
  }
  std::map<std::string, const nn::Codec*> choose(double bits) {
    return choose_formats(pool, from, options, bits, tokens);
  }
  quant::ModelReport quantize(double bits, const io::fs::path& to) {
    auto with = options;
    with.other_codec = [chosen = choose(bits)](const std::string& name) { return chosen.at(name); };
    auto report = quantize_folder(pool, from, to, with);
    measure_layers(pool, from, to, tokens, report);
    return report;
  }

  Pool pool{2};
  io::TempFolder temp;
  io::fs::path from = temp / "model";
  quant::QuantizeModelOptions options;
  std::vector<std::int32_t> tokens;
};

double divergence(const quant::ModelReport& report) {
  double sum = 0;
  for (const auto& l : report.layers) sum += l.quantized ? l.divergence : 0;
  return sum;
}

TEST_F(ChooseFormats, more_bits_cost_less_and_none_are_beyond_the_target) {
  double last = 1e9;
  for (const double bits : {4.0, 5.0, 6.5, 8.2}) {
    const auto to = temp / std::to_string(bits);
    const auto report = quantize(bits, to);
    EXPECT_LE(report.bits_per_weight(), bits);
    EXPECT_GT(report.bits_per_weight(), bits - 1);
    EXPECT_LT(divergence(report), last) << bits;
    last = divergence(report);
    const auto model = LanguageModel::open(to);
    EXPECT_NEAR(infer::evaluate(model, pool, tokens).loss,
                infer::evaluate(LanguageModel::open(from), pool, tokens).loss, 0.1);
  }
}

TEST_F(ChooseFormats, a_folder_says_which_formats_it_holds) {
  const auto to = temp / "mixed";
  const auto report = quantize(5, to);
  std::set<std::string> names;
  for (const auto& l : report.layers)
    if (l.codec) names.emplace(l.codec->name);
  EXPECT_GE(names.size(), 2u);
  const auto config = io::read_json(to / "config.json").at("quantization_config");
  EXPECT_EQ(config.at("quant_method"), "hpcdl_int4");
  names.erase("int4");
  EXPECT_EQ(config.at("others").get<std::set<std::string>>(), names);
}

TEST_F(ChooseFormats, the_text_and_what_is_kept_decide) {
  options.keep = [](const std::string& name) { return name == "lm_head.weight"; };
  EXPECT_FALSE(choose(5).contains("lm_head.weight"));
  EXPECT_EQ(choose(5), choose(5));
  for (const auto& [name, codec] : choose(9)) EXPECT_EQ(codec, &quant::int8_codec) << name;
  const auto refused = [&] {
    try {
      choose(2);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  }();
  EXPECT_NE(refused.find("the smallest formats of the matrices take"), std::string::npos) << refused;
}

}  // namespace
}  // namespace hpcdl::models
