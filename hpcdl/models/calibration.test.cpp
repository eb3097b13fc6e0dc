#include "hpcdl/models/calibration.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "hpcdl/core/convert.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/safetensors_writer.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/models/layer_divergence.h"
#include "hpcdl/models/quantize.h"
#include "hpcdl/models/tiny_for_tests.h"

namespace hpcdl::models {
namespace {

namespace fs = io::fs;

std::string message(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

struct Model {
  io::TempFolder temp;
  io::ModelConfig config;
  fs::path folder = temp / "model";

  explicit Model(io::Family family, DType dtype = DType::f32) : config(tiny(family)) {
    LanguageModel::create(config, 3, false).save(folder, dtype);
  }
};

std::vector<float> floats(const View& v) {
  const OwnedTensor wide({v.shape(), DType::f32});
  convert_elements(wide.tensor, v);
  return {wide.tensor.ptr<float>(), wide.tensor.ptr<float>() + v.size()};
}

TEST(calibration, the_first_matrices_see_normalised_embeddings) {
  Pool pool(2);
  const Model m(io::Family::llama);
  const auto ids = tiny_ids(7);
  const auto model = LanguageModel::open(m.folder);
  ModelCalibration calibration(model, pool, ids);
  EXPECT_EQ(calibration.tokens(), 32);
  const auto files = io::TensorFolder::open(m.folder);
  const auto table = floats(files.at("model.embed_tokens.weight")),
             norm = floats(files.at("model.layers.0.input_layernorm.weight"));
  const auto& moments = calibration.moments("model.layers.0.self_attn.k_proj.weight");
  ASSERT_EQ(moments.k(), 32);
  EXPECT_EQ(moments.rows(), 32);
  std::vector<double> want(32 * 32), sizes(32 * 32);
  for (const auto id : ids) {
    const float* row = table.data() + id * 32;
    double squares = 0;
    for (int i = 0; i < 32; ++i) squares += static_cast<double>(row[i]) * row[i];
    const double scale = 1 / std::sqrt(squares / 32 + m.config.norm_eps);
    for (std::size_t i = 0; i < 32; ++i)
      for (std::size_t j = 0; j < 32; ++j) {
        const double p = row[i] * scale * norm[i] * row[j] * scale * norm[j] / 32;
        want[i * 32 + j] += p, sizes[i * 32 + j] += std::fabs(p);
      }
  }
  for (std::int64_t i = 0; i < 32; ++i)
    for (std::int64_t j = 0; j < 32; ++j) {
      const auto at = static_cast<std::size_t>(i * 32 + j);
      EXPECT_NEAR(moments.at(i, j), want[at], 64 * 0x1p-24 * sizes[at]);
    }
}

/// A model like that of `from`, whose matrices in block 0 are half as large.
void save_changed(const fs::path& from, const fs::path& to, const ModelCalibration& calibration) {
  io::make_folder(to);
  io::write_file_atomic(to / "config.json", io::read_file(from / "config.json"));
  const auto files = io::TensorFolder::open(from);
  std::vector<io::NamedSpec> specs;
  for (const auto& t : files.tensors()) specs.push_back({t.name, t.spec});
  io::TensorFolderWriter writer(to, specs);
  for (const auto& t : files.tensors()) {
    auto values = floats(files.at(t.name));
    const bool changes = calibration.place(t.name) >= 0 && t.name.find(".0.") != std::string::npos;
    for (auto& v : values) v = changes ? v / 2 : v;
    const OwnedTensor stored(t.spec);
    convert_elements(stored.tensor, View(values.data(), {t.spec.shape, DType::f32}));
    writer.write(t.name, stored.tensor);
  }
  writer.commit();
}

/// Blocks after a replaced matrix see what a model computes whose files hold the new values: to the bit.
TEST(calibration, later_blocks_see_what_the_new_values_compute) {
  Pool pool(2);
  for (const auto family : text_families())
    for (const auto dtype : {DType::f32, DType::bf16}) {
      const Model m(family, dtype);
      const auto name = io::enum_name(family);
      const auto ids = tiny_ids(7);
      const auto model = LanguageModel::open(m.folder);
      ModelCalibration calibration(model, pool, ids);
      save_changed(m.folder, m.temp / "changed", calibration);
      const auto other_model = LanguageModel::open(m.temp / "changed");
      ModelCalibration changed(other_model, pool, ids);

      const auto files = io::TensorFolder::open(m.folder);
      std::map<std::int64_t, std::string> in_order;
      for (const auto& t : files.tensors())
        if (calibration.place(t.name) >= 0) in_order.emplace(calibration.place(t.name), t.name);
      const bool in_out = family == io::Family::gpt2;
      int compared = 0;
      for (const auto& [place, matrix] : in_order) {
        const auto &a = calibration.moments(matrix), &b = changed.moments(matrix);
        ASSERT_EQ(a.rows(), b.rows()) << name << ' ' << matrix;
        const bool first = matrix.find(".0.") != std::string::npos;
        for (std::int64_t i = 0; i < a.k() && !first; ++i)
          for (std::int64_t j = 0; j < a.k(); ++j) ASSERT_EQ(a.at(i, j), b.at(i, j)) << name << ' ' << matrix;
        compared += !first;
        if (!first) continue;
        const View stored = files.at(matrix);
        const auto values = floats(stored);
        const auto n = stored[in_out ? 1 : 0], k = stored[in_out ? 0 : 1];
        const OwnedTensor halves({{n, k}, DType::f32});
        for (std::int64_t r = 0; r < n; ++r)
          for (std::int64_t i = 0; i < k; ++i)
            halves.tensor.ptr<float>()[r * k + i] =
                values[static_cast<std::size_t>(in_out ? i * n + r : r * k + i)] / 2;
        calibration.replaced(matrix, halves.tensor);
      }
      EXPECT_GE(compared, 4) << name;
      EXPECT_NE(message([&] { calibration.moments(in_order.begin()->second); }).find("after the matrices"),
                std::string::npos);
    }
}

TEST(calibration, knows_nothing_of_experts) {
  Pool pool(2);
  const Model m(io::Family::mixtral);
  const auto ids = tiny_ids(7);
  const auto model = LanguageModel::open(m.folder);
  const ModelCalibration calibration(model, pool, ids);
  const auto files = io::TensorFolder::open(m.folder);
  for (const auto& t : files.tensors())
    EXPECT_TRUE(t.name.find(".experts.") == std::string::npos || calibration.place(t.name) == -1) << t.name;
  EXPECT_GE(calibration.place("model.layers.1.self_attn.o_proj.weight"), 0);
}

TEST(calibration, says_what_is_wrong) {
  Pool pool(2);
  const Model m(io::Family::gpt2);
  const auto model = LanguageModel::open(m.folder);
  const auto text = [&](std::vector<std::int32_t> ids) {
    return message([&] { const ModelCalibration c(model, pool, ids); });
  };
  EXPECT_NE(text({1, 2, 3}).find("has 3 tokens: give at least 16"), std::string::npos) << text({1, 2, 3});
  EXPECT_NE(text(std::vector<std::int32_t>(16, 50)).find("token 50 is not in the model's vocabulary"),
            std::string::npos);
  const std::vector<std::int32_t> one{1};
  EXPECT_NE(message([&] { const LayerDivergence d(model, pool, one); }).find("too few"), std::string::npos);
}

/// The divergence that matrices cause by themselves whose errors the other model compensates, all of them added.
double divergence(const quant::ModelReport& report, const quant::ModelReport& compensated) {
  double sum = 0;
  for (const auto& l : report.layers) {
    const auto other = std::ranges::find(compensated.layers, l.name, &quant::LayerReport::name);
    sum += other->compensated ? l.divergence : 0;
  }
  return sum;
}

TEST(calibration, changes_the_next_token_less) {
  Pool pool(2);
  for (const auto family : {io::Family::gpt2, io::Family::qwen3}) {
    const Model m(family);
    std::vector<std::int32_t> ids;
    for (std::uint32_t seed = 0; seed < 24; ++seed)
      for (const auto id : tiny_ids(seed)) ids.push_back(id);
    quant::QuantizeModelOptions options{.options = {.group = 32}};
    auto plain = quantize_folder(pool, m.folder, m.temp / "plain", options);
    const auto model = LanguageModel::open(m.folder);
    ModelCalibration calibration(model, pool, ids);
    options.calibration = &calibration;
    options.activation_scales = true;
    auto compensated = quantize_folder(pool, m.folder, m.temp / "calibrated", options);
    EXPECT_EQ(plain.bytes(), compensated.bytes());
    EXPECT_EQ(io::read_file(m.temp / "plain" / "config.json"), io::read_file(m.temp / "calibrated" / "config.json"));
    measure_layers(pool, m.folder, m.temp / "plain", ids, plain);
    measure_layers(pool, m.folder, m.temp / "calibrated", ids, compensated);
    EXPECT_LT(divergence(compensated, compensated), 0.9 * divergence(plain, compensated)) << io::enum_name(family);
    for (const auto& l : compensated.layers)
      EXPECT_EQ(l.compensated, l.quantized && (m.config.tied || l.name != "model.embed_tokens.weight")) << l.name;
  }
}

TEST(calibration, keeps_the_matrices_that_are_named) {
  Pool pool(2);
  const Model m(io::Family::llama);
  quant::QuantizeModelOptions options{.options = {.group = 32}};
  options.keep = [](const std::string& name) { return name.ends_with("down_proj.weight"); };
  quantize_folder(pool, m.folder, m.temp / "int4", options);
  const auto before = io::TensorFolder::open(m.folder), after = io::TensorFolder::open(m.temp / "int4");
  const std::string kept = "model.layers.1.mlp.down_proj.weight";
  EXPECT_EQ(floats(before.at(kept)), floats(after.at(kept)));
  EXPECT_FALSE(after.contains("model.layers.1.mlp.up_proj.weight"));
  LanguageModel::open(m.temp / "int4");
  options.keep = [](const std::string& name) { return name == "lm_heat.weight"; };
  EXPECT_NE(message([&] { quantize_folder(pool, m.folder, m.temp / "none", options); }).find("no matrix has a name"),
            std::string::npos);
}

}  // namespace
}  // namespace hpcdl::models
