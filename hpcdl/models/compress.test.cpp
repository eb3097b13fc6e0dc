// Compressed folders: what they hold, that they compute what their factors say, and what is refused.

#include "hpcdl/models/compress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hpcdl/core/convert.h"
#include "hpcdl/core/error.h"
#include "hpcdl/instance.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/safetensors_writer.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/models/calibration.h"
#include "hpcdl/models/compressed_config.h"
#include "hpcdl/models/hf_config.h"
#include "hpcdl/models/quantize.h"
#include "hpcdl/models/tiny_for_tests.h"
#include "hpcdl/nn/structured.h"
#include "hpcdl/quant/factors.h"

namespace hpcdl::models {
namespace {

namespace fs = io::fs;
using nn::Method;

std::string message(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

OwnedTensor as_f32(const View& v) {
  OwnedTensor t({v.shape(), DType::f32});
  convert_elements(t.tensor, v);
  return t;
}

struct Model {
  io::TempFolder temp;
  io::ModelConfig config;
  fs::path from = temp / "model", to = temp / "compressed";
  Pool pool{2};

  explicit Model(io::Family family, DType dtype = DType::f32) : config(tiny(family)) {
    LanguageModel::create(config, 3, false).save(from, dtype);
    io::write_file_atomic(from / "tokenizer.json", "{\"version\": 1}");
  }
  quant::CompressReport compress(quant::CompressModelOptions options) {
    return compress_folder(pool, from, to, std::move(options));
  }
  std::string refused(quant::CompressModelOptions options) {
    const auto text = message([&] { compress(std::move(options)); });
    EXPECT_FALSE(fs::exists(to));
    EXPECT_FALSE(fs::exists(temp / ".tmp-compressed"));
    return text;
  }
};

std::vector<float> logits_of(const fs::path& folder, Pool& pool) {
  const auto model = LanguageModel::open(folder);
  const auto ids = tiny_ids(7);
  Graph g({.inference = true});
  const Var tokens = g.input("tokens", {{2, 16}, DType::i32});
  const Var y = g.keep(model.logits(g, tokens));
  const Instance exe(g.finish());
  std::memcpy(exe.tensor(tokens).data(), ids.data(), sizeof(std::int32_t) * 32);
  Stream s(pool);
  exe.run(s);
  const auto out = exe.tensor(y);
  return {out.ptr<float>(), out.ptr<float>() + out.size()};
}

/// The folder with its factors multiplied out: a model without compression.
void expand_folder(Model& m, const fs::path& folder) {
  const auto config = read_hf_config(m.to);
  const auto now = io::TensorFolder::open(m.to), was = io::TensorFolder::open(m.from);
  std::vector<io::NamedSpec> specs;
  for (const auto& t : was.tensors()) specs.push_back({t.name, {t.spec.shape, DType::f32}});
  io::make_folder(folder);
  io::TensorFolderWriter writer(folder, specs);
  for (const auto& t : was.tensors()) {
    const auto layer = t.name.substr(0, t.name.rfind('.'));
    const auto at = config.compressed.find(layer);
    if (at == config.compressed.end() || !t.name.ends_with(".weight")) {
      writer.write(t.name, as_f32(now.at(t.name)).tensor);
      continue;
    }
    quant::Factors f;
    f.input = as_f32(now.at(layer + ".factor_in.weight")), f.output = as_f32(now.at(layer + ".factor_out.weight"));
    if (at->second.method == Method::blast) f.scale = as_f32(now.at(layer + ".factor_scale.weight"));
    const auto w = quant::expand(m.pool, f, at->second);
    const OwnedTensor stored({t.spec.shape, DType::f32});
    const bool transposed = m.config.family == io::Family::gpt2;
    for (std::int64_t i = 0; i < w.tensor[0]; ++i)
      for (std::int64_t j = 0; j < w.tensor[1]; ++j)
        stored.tensor.ptr<float>()[transposed ? j * w.tensor[0] + i : i * w.tensor[1] + j] =
            w.tensor.ptr<float>()[i * w.tensor[1] + j];
    writer.write(t.name, stored.tensor);
  }
  writer.commit();
  auto plain = config;
  plain.compressed.clear();
  plain.dtype = DType::f32;
  write_hf_config(folder, plain);
}

TEST(compress, the_folder_computes_what_its_factors_say) {
  for (const auto family : {io::Family::gpt2, io::Family::llama, io::Family::phi3, io::Family::gemma2})
    for (const auto method : {Method::svd, Method::monarch, Method::blast}) {
      Model m(family);
      const auto report = m.compress({.method = method, .ratio = 0.5});
      EXPECT_LE(report.ratio(), 0.5);
      EXPECT_GT(report.ratio(), 0.35);
      EXPECT_GT(report.relative_error(), 0.01);
      EXPECT_LT(report.relative_error(), 0.8);
      EXPECT_LT(report.bytes, report.bytes_before);
      const auto config = read_hf_config(m.to);
      EXPECT_EQ(config.compressed.size(), report.layers.size());
      auto again = config;
      again.compressed.clear();
      EXPECT_EQ(again, read_hf_config(m.from));
      EXPECT_EQ(io::read_file(m.to / "tokenizer.json"), "{\"version\": 1}");
      expand_folder(m, m.temp / "expanded");
      const auto got = logits_of(m.to, m.pool), want = logits_of(m.temp / "expanded", m.pool);
      ASSERT_EQ(got.size(), want.size());
      for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], want[i], 1e-4) << io::enum_name(family) << " " << nn::method_name(method);
    }
}

TEST(compress, other_tensors_keep_their_bytes_and_factors_have_the_type_of_their_matrix) {
  Model m(io::Family::gpt2, DType::bf16);
  const auto report = m.compress({.method = Method::svd, .ratio = 0.4, .keep = [](const std::string& name) {
                                    return name.find("h.1.") != std::string::npos;
                                  }});
  EXPECT_EQ(report.layers.size(), 4u);
  const auto was = io::TensorFolder::open(m.from), now = io::TensorFolder::open(m.to);
  std::size_t same = 0;
  for (const auto& t : was.tensors()) {
    const auto factor = t.name.substr(0, t.name.size() - 6) + "factor_in.weight";
    if (now.contains(factor)) {
      EXPECT_EQ(now.at(factor).dtype(), DType::bf16);
      EXPECT_FALSE(now.contains(t.name));
      continue;
    }
    const View a = was.at(t.name), b = now.at(t.name);
    ASSERT_EQ(a.spec(), b.spec());
    EXPECT_EQ(std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.bytes())), 0) << t.name;
    ++same;
  }
  EXPECT_EQ(same + report.layers.size(), was.tensors().size());
}

TEST(compress, two_runs_write_the_same_bytes) {
  for (const auto method : {Method::svd, Method::monarch, Method::blast}) {
    Model m(io::Family::llama);
    m.compress({.method = method, .ratio = 0.5});
    const auto first = io::read_file(m.to / "model.safetensors");
    Pool one(1);
    compress_folder(one, m.from, m.to, {.method = method, .ratio = 0.5});
    EXPECT_EQ(first, io::read_file(m.to / "model.safetensors"));
  }
}

TEST(compress, experts_and_routers_stay) {
  Model m(io::Family::mixtral);
  const auto report = m.compress({.method = Method::monarch, .ratio = 0.5});
  EXPECT_EQ(report.layers.size(), 8u);
  for (const auto& l : report.layers) EXPECT_NE(l.name.find("self_attn"), std::string::npos);
  logits_of(m.to, m.pool);
}

/// With a text, layers give more nearly what they gave on that text.
TEST(compress, a_calibration_lessens_the_error_of_the_logits) {
  Model m(io::Family::llama);
  // Inputs of very different size, as in trained models.
  auto model = LanguageModel::create(m.config, 3, false);
  for (const auto& e : model.parameters())
    if (e.name.ends_with("layernorm.weight"))
      for (std::int64_t i = 0; i < e.memory.size(); ++i) e.memory.ptr<float>()[i] = i % 8 == 0 ? 6.0f : 0.5f;
  model.save(m.from);
  const auto ids = tiny_ids(7);
  const auto distance = [&] {
    const auto got = logits_of(m.to, m.pool), want = logits_of(m.from, m.pool);
    double sum = 0;
    for (std::size_t i = 0; i < got.size(); ++i) sum += std::pow(static_cast<double>(got[i] - want[i]), 2);
    return sum;
  };
  m.compress({.method = Method::svd, .ratio = 0.4});
  const auto plain = distance();
  const auto original = LanguageModel::open(m.from);
  ModelCalibration calibration(original, m.pool, ids);
  const auto report = m.compress({.method = Method::svd, .ratio = 0.4, .calibration = &calibration});
  EXPECT_TRUE(std::ranges::all_of(report.layers, &quant::CompressedLayer::weighed));
  EXPECT_LT(distance(), 0.7 * plain);
}

TEST(compress, says_what_is_wrong) {
  Model m(io::Family::llama);
  EXPECT_NE(m.refused({.ratio = 1}).find("expected a ratio between 0 and 1, found 1"), std::string::npos);
  EXPECT_NE(m.refused({.ratio = 0}).find("between 0 and 1"), std::string::npos);
  EXPECT_NE(m.refused({.ratio = 0.01}).find("use a larger ratio"), std::string::npos);
  EXPECT_NE(m.refused({.method = Method::monarch, .ratio = 0.5, .blocks = 7})
                .find("has no 7 equal blocks: --blocks may be 2, 4"),
            std::string::npos);
  EXPECT_NE(
      m.refused({.keep = [](const std::string&) { return false; }}).find("no matrix has a name that is to be kept"),
      std::string::npos);
  EXPECT_NE(m.refused({.keep = [](const std::string&) { return true; }}).find("--keep leaves all 14 matrices"),
            std::string::npos);
  m.compress({.ratio = 0.5});
  const auto twice = message([&] { compress_folder(m.pool, m.to, m.temp / "twice", {.ratio = 0.5}); });
  EXPECT_NE(twice.find("is compressed (hpcdl compress): start from the original"), std::string::npos) << twice;
  const auto quantised = message([&] { quantize_folder(m.pool, m.to, m.temp / "int4", {.keep_odd = true}); });
  EXPECT_NE(quantised.find("is compressed"), std::string::npos) << quantised;
  quantize_folder(m.pool, m.from, m.temp / "int4", {.options = {.group = 32}});
  const auto of_int4 = message([&] { compress_folder(m.pool, m.temp / "int4", m.temp / "no", {.ratio = 0.5}); });
  EXPECT_NE(of_int4.find("the model is quantised; start from the original"), std::string::npos) << of_int4;
  io::write_file_atomic(m.from / "adapter_config.json", "{}");
  EXPECT_NE(message([&] { m.compress({.ratio = 0.5}); }).find("found an adapter: merge it"), std::string::npos);
}

TEST(compress, a_matrix_with_nan_is_named) {
  Model m(io::Family::llama);
  auto model = LanguageModel::create(m.config, 3, false);
  for (const auto& e : model.parameters())
    if (e.name == "model.layers.1.mlp.up_proj.weight") e.memory.ptr<float>()[5] = std::nanf("");
  model.save(m.from);
  EXPECT_NE(m.refused({.ratio = 0.5}).find("model.layers.1.mlp.up_proj.weight"), std::string::npos);
}

/// What may be in a config.json that nobody has checked.
TEST(compress, a_config_that_does_not_fit_is_refused) {
  Model m(io::Family::llama);
  m.compress({.method = Method::monarch, .ratio = 0.5});
  const auto good = io::Json::parse(io::read_file(m.to / "config.json"));
  const std::string layer = "model.layers.0.mlp.up_proj";
  const auto with = [&](const std::function<void(io::Json&)>& change) {
    auto json = good;
    change(json["hpcdl_compression"]);
    io::write_file_atomic(m.to / "config.json", json.dump());
    return message([&] { LanguageModel::open(m.to); });
  };
  EXPECT_EQ(with([](io::Json&) {}), "no error");
  const auto expect = [&](const std::function<void(io::Json&)>& change, const std::string& words) {
    const auto text = with(change);
    EXPECT_NE(text.find(words), std::string::npos) << text;
  };
  expect([&](io::Json& j) { j[layer]["method"] = "magic"; }, "method: expected svd, monarch or blast, found \"magic\"");
  expect([&](io::Json& j) { j[layer]["rank"] = 0; }, "rank: expected 1 to 16777216, found 0");
  expect([&](io::Json& j) { j[layer]["rank"] = 1 << 20; }, "has a rank of 1 to 8, not of 1048576");
  expect([&](io::Json& j) { j[layer]["rank"] = 1; },
         "config.json asks for model.layers.0.mlp.up_proj.factor_in.weight");
  expect([&](io::Json& j) { j[layer]["rank"] = "many"; }, "rank");
  expect([&](io::Json& j) { j[layer]["blocks"] = 3; }, "cannot have 3 blocks");
  expect([&](io::Json& j) { j[layer]["blocks"] = -4; }, "blocks: expected 1 to");
  expect([&](io::Json& j) { j[layer].erase("blocks"); }, "expected key \"blocks\"");
  expect([&](io::Json& j) { j[layer] = 7; }, "up_proj");
  expect([&](io::Json& j) { j = io::Json::array(); }, "hpcdl_compression");
  expect([&](io::Json& j) { j.erase(layer); }, "up_proj");
  expect([&](io::Json& j) { j["model.layers.0.mlp.upp_proj"] = j[layer]; }, "has no such layer in its blocks");
}

TEST(compress, what_no_compressed_model_can_do_is_refused) {
  Model m(io::Family::llama);
  m.compress({.method = Method::blast, .ratio = 0.5});
  const auto config = read_hf_config(m.to);
  const auto adapting = message([&] {
    AdapterOptions o;
    o.method = AdapterMethod::lora;
    LanguageModel::open_for_adapting(m.to, o, 1, {}, {}, {.format = BaseFormat::nf4});
  });
  EXPECT_NE(adapting.find("factors are not quantised: leave model.quantize out"), std::string::npos) << adapting;
  EXPECT_NE(message([&] {
              LanguageModel::open_for_training(m.to, {}, {.on = true, .first = 0, .last = 0});
            }).find("not trained in fp8"),
            std::string::npos);
  EXPECT_NE(message([&] { require_on_gpu(config); }).find("which only a CPU multiplies"), std::string::npos);
}

}  // namespace
}  // namespace hpcdl::models
