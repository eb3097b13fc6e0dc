// Folders in the formats that only this project has: written, opened, refused where they are damaged.

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/infer/evaluate.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/safetensors_writer.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/hf_config.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/quantize.h"
#include "hpcdl/quant/codecs.h"

namespace hpcdl::quant {
namespace {

namespace fs = io::fs;

struct Format {
  const char* name;
  const char* codes;  // the ending of their tensors
  double bits, relative_rms;
};
constexpr Format kFormats[] = {{"rot3", ".rot3", 3.125, 0.19},
                               {"rot-ternary", ".rot_ternary", 1.75, 0.45},
                               {"fp8", ".fp8", 8.13, 0.04},
                               {"mxfp4", ".mxfp4", 4.25, 0.13}};

struct OwnFormat : ::testing::TestWithParam<Format> {
  OwnFormat() {
    io::ModelConfig c{.family = io::Family::gpt2, .layers = 1, .heads = 4, .width = 256, .context = 32, .vocab = 70};
    models::resolve(c);
    models::LanguageModel::create(c, 5, false).save(from);
    options.codec = find_codec(GetParam().name);
    report = models::quantize_folder(pool, from, to, options);
  }

  /// The folder with one tensor more, less, or another.
  void change(const std::function<void(std::map<std::string, OwnedTensor>&)>& f) {
    const auto files = io::TensorFolder::open(to);
    std::map<std::string, OwnedTensor> all;
    for (const auto& t : files.tensors()) {
      OwnedTensor copy(t.spec);
      std::memcpy(copy.tensor.data(), files.at(t.name).data(), static_cast<std::size_t>(t.spec.bytes()));
      all.emplace(t.name, std::move(copy));
    }
    f(all);
    fs::remove_all(broken);
    fs::copy(to, broken);
    std::vector<io::NamedSpec> specs;
    for (const auto& [name, t] : all) specs.push_back({name, t.tensor.spec()});
    io::TensorFolderWriter writer(broken, specs);
    for (const auto& [name, t] : all) writer.write(name, t.tensor);
    writer.commit();
  }
  std::string refused(const std::function<void(std::map<std::string, OwnedTensor>&)>& f) {
    change(f);
    return refused();
  }
  std::string refused() {
    try {
      models::LanguageModel::open(broken);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }

  Pool pool{2};
  io::TempFolder temp;
  fs::path from = temp / "model", to = temp / "quantised", broken = temp / "broken";
  QuantizeModelOptions options;
  ModelReport report;
  const std::string matrix = "transformer.h.0.mlp.c_fc.weight", codes = matrix + GetParam().codes,
                    scale = codes + "_scale";
};

TEST_P(OwnFormat, opens_and_computes_nearly_what_the_original_does) {
  EXPECT_NEAR(report.bits_per_weight(), GetParam().bits, 0.001 + 0.1 * (GetParam().bits > 8));
  for (const auto& l : report.layers) EXPECT_LT(l.quantized ? l.relative_rms : 0, GetParam().relative_rms) << l.name;
  const auto model = models::LanguageModel::open(to);
  EXPECT_EQ(model.codec(), options.codec);
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < 70; ++i) tokens.push_back(i * 31 % 70);
  const auto original = models::LanguageModel::open(from);
  EXPECT_NEAR(infer::evaluate(model, pool, tokens).loss, infer::evaluate(original, pool, tokens).loss, 0.1);
  // Few tokens at a time are multiplied in another way.
  const auto in_pages = infer::evaluate_in_pages(model, pool, std::span(tokens).first(20), {});
  EXPECT_NEAR(in_pages.loss, infer::evaluate(model, pool, std::span(tokens).first(20)).loss, 0.02);
}

TEST_P(OwnFormat, damaged_folders_are_refused_by_name) {
  EXPECT_EQ(refused([](auto&) {}), "");
  const auto shape_of = [&](std::map<std::string, OwnedTensor>& all, const std::string& name) {
    return all.at(name).tensor.spec();
  };
  const auto with = [&](const std::string& name, const std::function<void(Spec&)>& f) {
    return refused([&](auto& all) {
      Spec spec = shape_of(all, name);
      f(spec);
      all.at(name) = OwnedTensor(spec);
    });
  };
  for (const auto& name : {codes, scale}) {
    const auto wider = with(name, [](Spec& s) { s.shape[-1] += 1; });
    EXPECT_NE(wider.find(name), std::string::npos) << wider;
    const auto shorter = with(name, [](Spec& s) { s.shape[0] -= 1; });
    EXPECT_NE(shorter.find(name), std::string::npos) << shorter;
    const auto other = with(name, [](Spec& s) { s.dtype = s.dtype == DType::f32 ? DType::bf16 : DType::i8; });
    EXPECT_NE(other.find(name), std::string::npos) << other;
  }
  const auto without = refused([&](auto& all) { all.erase(scale); });
  EXPECT_NE(without.find(scale), std::string::npos) << without;
  EXPECT_NE(refused([&](auto& all) { all.erase(codes); }), "");
}

TEST_P(OwnFormat, configs_that_say_something_else_are_refused) {
  change([](auto&) {});
  const auto with = [&](const char* key, const io::Json& value) {
    auto config = io::read_json(to / "config.json");
    config["quantization_config"][key] = value;
    io::write_file_atomic(broken / "config.json", config.dump());
    return refused();
  };
  EXPECT_NE(with("bits", 5).find("expected " + std::to_string(options.codec->bits) + " bits, found 5"),
            std::string::npos);
  EXPECT_NE(with("nested", true).find("expected false"), std::string::npos);
  // Every tensor names its own format, so that a folder may mix them.
  EXPECT_EQ(with("quant_method", "hpcdl_nf4") == "", options.codec->bits == 4);
  EXPECT_NE(with("quant_method", "hpcdl_rot4").find("expected quant_method"), std::string::npos);
}

TEST_P(OwnFormat, every_byte_is_a_code) {
  change([&](auto& all) {
    auto& t = all.at(codes).tensor;
    for (std::int64_t i = 0; i < t.bytes(); ++i) t.template ptr<std::uint8_t>()[i] = static_cast<std::uint8_t>(i * 7);
  });
  const auto model = models::LanguageModel::open(broken);
  const std::vector<std::int32_t> tokens{1, 2, 3, 4, 5};
  EXPECT_GT(infer::evaluate(model, pool, tokens).loss, 0);
}

INSTANTIATE_TEST_SUITE_P(formats, OwnFormat, ::testing::ValuesIn(kFormats),
                         [](const auto& p) { return std::string(p.param.codes + 1); });

}  // namespace
}  // namespace hpcdl::quant
