#include "hpcdl/quant/quantize_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "hpcdl/core/convert.h"
#include "hpcdl/core/error.h"
#include "hpcdl/infer/evaluate.h"
#include "hpcdl/instance.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/crc32c.h"
#include "hpcdl/io/safetensors_writer.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/hf_config.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/quantize.h"
#include "hpcdl/nn/linear.h"
#include "hpcdl/ops/embedding/embedding.h"
#include "hpcdl/quant/int4.h"
#include "hpcdl/rng.h"
#include "hpcdl/state/table.h"

namespace hpcdl::quant {
namespace {

namespace fs = io::fs;

const std::vector<io::NamedSpec> kGpt2 = {
    {"transformer.wte.weight", {{70, 64}, DType::f32}},
    {"transformer.wpe.weight", {{32, 64}, DType::f32}},
    {"transformer.h.0.ln_1.weight", {{64}, DType::f32}},
    {"transformer.h.0.attn.bias", {{1, 1, 32, 32}, DType::f32}},
    {"transformer.h.0.attn.c_attn.weight", {{64, 192}, DType::f32}},
    {"transformer.h.0.attn.c_attn.bias", {{192}, DType::f32}},
    {"transformer.h.0.mlp.c_proj.weight", {{256, 64}, DType::bf16}},
    {"lm_head.weight", {{70, 64}, DType::f32}},
};

struct Folder {
  io::TempFolder temp;
  fs::path from = temp / "model", to = temp / "model-int4";

  explicit Folder(float poison = 0) {
    io::ModelConfig c{.layers = 1, .heads = 4, .width = 64, .context = 32, .vocab = 70};
    models::resolve(c);
    io::make_folder(from);
    models::write_hf_config(from, c);
    io::write_file_atomic(from / "tokenizer.json", "{\"version\": 1}");
    io::TensorFolderWriter writer(from, kGpt2);
    const Rng rng{5, 5};
    std::uint64_t at = 0;
    for (const auto& t : kGpt2) {
      OwnedTensor v(t.spec);
      for (std::int64_t i = 0; i < t.spec.size(); ++i) {
        auto w = 0.02f * (rng.uniform(at++) - 0.5f);  // the same on every machine
        if (poison != 0 && t.name.ends_with("c_attn.weight") && i == 192 * 3 + 7) w = poison;
        if (t.spec.dtype == DType::f32) v.tensor.ptr<float>()[i] = w;
        else v.tensor.ptr<bf16>()[i] = bf16(w);
      }
      writer.write(t.name, v.tensor);
    }
    writer.commit();
  }
};

std::string message(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

void expect_same(const View& a, const View& b) {
  ASSERT_EQ(a.spec(), b.spec());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.bytes())), 0);
}

TEST(quantize_model, writes_a_folder_that_stands_alone) {
  const Folder f;
  Pool pool(2);
  std::int64_t last = -1, total = 0;
  std::size_t calls = 0;
  QuantizeModelOptions options{.options = {.group = 32, .symmetric = false}};
  options.progress = [&](const std::string&, std::int64_t done, std::int64_t all) {
    EXPECT_GT(done, last);
    last = done, total = all, ++calls;
  };
  const auto report = models::quantize_folder(pool, f.from, f.to, options);
  EXPECT_EQ(last, total);
  EXPECT_EQ(calls, report.layers.size() + 1);

  const auto config = models::read_hf_config(f.to);
  ASSERT_TRUE(config.quant);
  EXPECT_EQ(config.quant->options.group, 32);
  EXPECT_FALSE(config.quant->options.symmetric);
  EXPECT_EQ(io::read_file(f.to / "tokenizer.json"), "{\"version\": 1}");

  const auto old = io::TensorFolder::open(f.from), now = io::TensorFolder::open(f.to);
  EXPECT_FALSE(now.contains("lm_head.weight"));
  EXPECT_FALSE(now.contains("transformer.h.0.attn.bias"));
  for (const char* name : {"transformer.wpe.weight", "transformer.h.0.ln_1.weight", "transformer.h.0.attn.c_attn.bias"})
    expect_same(old.at(name), now.at(name));
  for (const std::string name :
       {"transformer.wte.weight", "transformer.h.0.attn.c_attn.weight", "transformer.h.0.mlp.c_proj.weight"}) {
    nn::RoundingError error;
    const auto want = quantize_int4(pool, old.at(name), options.options, name.find(".c_") != std::string::npos, &error);
    EXPECT_FALSE(now.contains(name));
    expect_same(now.at(name + ".int4"), want.packed.tensor);
    expect_same(now.at(name + ".int4_scale"), want.scale.tensor);
    expect_same(now.at(name + ".int4_offset"), want.offset.tensor);
    const auto layer =
        std::find_if(report.layers.begin(), report.layers.end(), [&](const LayerReport& l) { return l.name == name; });
    ASSERT_NE(layer, report.layers.end());
    EXPECT_EQ(layer->shape, Shape({want.weight().n(), want.weight().k()}));
    EXPECT_EQ(layer->relative_rms, error.relative_rms());
    EXPECT_EQ(layer->largest, error.largest);
    EXPECT_DOUBLE_EQ(layer->bits_per_weight, 5);
  }
  EXPECT_DOUBLE_EQ(report.bits_per_weight(), 5);
  EXPECT_DOUBLE_EQ(report.ratio_fp32(), 6.4);
  const auto json = to_json(report);
  EXPECT_EQ(json["layers"].size(), report.layers.size());
  EXPECT_EQ(json["bytes"], report.bytes());
  EXPECT_NE(to_text(report).find("transformer.h.0.mlp.c_proj.weight"), std::string::npos);
  EXPECT_EQ(to_text(report).find("ln_1"), std::string::npos);
}

/// Checksums of the files as they have been since the first version: folders from then must load, and new ones must be the same.
TEST(quantize_model, files_keep_their_bytes) {
  struct Golden {
    nn::CodecOptions options;
    std::uint32_t weights, config;
  };
  const Folder f;
  Pool pool(2);
  for (const auto& [options, weights, config] :
       {Golden{{}, 1359213856, 678270628}, Golden{{.group = 32, .symmetric = false}, 400143173, 2234041414},
        Golden{{.search = false}, 3834484945, 678270628}}) {
    models::quantize_folder(pool, f.from, f.to, {.options = options});
    EXPECT_EQ(io::crc32c(io::read_file(f.to / "model.safetensors")), weights) << options.group;
    EXPECT_EQ(io::crc32c(io::read_file(f.to / "config.json")), config) << options.group;
  }
}

/// Another format, of one bf16 number a weight, which the ops of dense matrices compute with.
constexpr std::int64_t kGroups[] = {16};
const nn::Codec kRounded{
    .name = "rounded",
    .bits = 16,
    .groups = kGroups,
    .names = {{{".values", ".rounded"}}},
    .specs = [](std::int64_t out, std::int64_t in,
                const nn::CodecOptions&) { return nn::Codec::Parts<Spec>{Spec{{out, in}, DType::bf16}}; },
    .multiply = [](const nn::Codec::Parts<Var>& w, const Var& x, const Var& bias, const Var& residual, Activation a,
                   DType out) { return linear(x, w[0], bias, {.activation = a, .out = out}, residual); },
    .rows = [](const nn::Codec::Parts<Var>& w, const Var& ids, const Var& positions, const Var& places,
               DType out) { return embedding(w[0], ids, positions, {.out = out}, places); },
    .quantize =
        [](Pool&, const View& w, const nn::CodecOptions&, bool transposed, nn::RoundingError& error, std::string_view) {
          nn::Codec::Parts<OwnedTensor> parts;
          const std::int64_t n = w[transposed ? 1 : 0], k = w[transposed ? 0 : 1];
          parts[0] = OwnedTensor({{n, k}, DType::bf16});
          OwnedTensor wide({w.shape(), DType::f32});
          convert_elements(wide.tensor, w);
          for (std::int64_t i = 0; i < n * k; ++i)
            parts[0].tensor.ptr<bf16>()[i] = bf16(wide.tensor.ptr<float>()[transposed ? i % k * n + i / k : i]);
          error.count = n * k;
          return parts;
        },
};

TEST(quantize_model, another_codec_is_one_row) {
  const Folder f;
  Pool pool(2);
  const auto report = models::quantize_folder(pool, f.from, f.to, {.codec = &kRounded, .options = {.group = 16}});
  EXPECT_DOUBLE_EQ(report.bits_per_weight(), 16);
  EXPECT_EQ(to_json(report)["format"], "rounded");
  EXPECT_EQ(io::read_json(f.to / "config.json")["quantization_config"]["quant_method"], "hpcdl_rounded");
  EXPECT_NE(
      message([&] { models::read_hf_config(f.to); })
          .find("expected quant_method hpcdl_int4, hpcdl_nf4, hpcdl_fp4, hpcdl_int8, hpcdl_rot3, hpcdl_rot-ternary, "
                "hpcdl_fp8, hpcdl_mxfp4, found"),
      std::string::npos)
      << "it is not in the list";

  const auto old = io::TensorFolder::open(f.from), now = io::TensorFolder::open(f.to);
  const std::string name = "transformer.h.0.attn.c_attn.weight";
  EXPECT_FALSE(now.contains(name));
  nn::Linear dense(64, 192, false, 0, nn::Layout::in_out), rounded = dense;
  StateTable table({&dense.weight, &rounded.weight});
  const auto tensor = [](const View& v) { return Tensor(const_cast<void*>(v.data()), v.spec()); };
  dense.weight.name = "dense", rounded.weight.name = "rounded";
  table.add_value(dense.weight, tensor(old.at(name)));
  rounded.weight.codec = &kRounded;
  rounded.weight.parts = kRounded.specs(192, 64, {});
  table.add_frozen(rounded.weight, ".values", tensor(now.at(name + ".rounded")));
  EXPECT_FALSE(rounded.has_matrix());

  Graph g({.inference = true});
  table.bind(g);
  const Var x = g.input("x", {{3, 64}, DType::f32});
  const auto pass = Pass::of(g, {x}, {g.keep(dense(x)), g.keep(rounded(x))});
  StepParams params;
  Stream s(pool, &params);
  Instance run(pass);
  for (std::int64_t i = 0; i < x.shape().size(); ++i) run.input(0).ptr<float>()[i] = static_cast<float>(i % 7) - 3;
  run.run(s);
  const auto *want = run.output(0).ptr<float>(), *got = run.output(1).ptr<float>();
  double squared = 0, origin = 0;
  for (std::int64_t i = 0; i < run.output(0).size(); ++i)
    squared += std::pow(got[i] - want[i], 2), origin += std::pow(want[i], 2);
  EXPECT_LT(std::sqrt(squared / origin), 1.0 / 256);  // a weight is wrong by at most 2^-9 of itself
  EXPECT_GT(squared, 0);
}

TEST(quantize_model, kernels_run_on_the_mapped_file) {
  const Folder f;
  Pool pool(2);
  Stream s(pool);
  models::quantize_folder(pool, f.from, f.to);
  const auto old = io::TensorFolder::open(f.from), now = io::TensorFolder::open(f.to);
  const std::string name = "transformer.h.0.attn.c_attn.weight";
  const View packed = now.at(name + ".int4"), scale = now.at(name + ".int4_scale");
  OwnedTensor x(Spec{{1, 64}, DType::f32}), y(Spec{{1, 192}, DType::f32}), values(Spec{{1, 64}, DType::f32}),
      steps(Spec{{1, 1}, DType::f32}), sums(Spec{{1, 1}, DType::i32});
  x.tensor.ptr<float>()[9] = 1;  // picks column 9 of the (out, in) matrix: row 9 of the stored one
  Int4Linear::forward(s, y.tensor, x.tensor, packed, scale, {}, {}, {}, values.tensor, steps.tensor, sums.tensor,
                      {.exact = true});
  double squared = 0, origin = 0;
  for (int i = 0; i < 192; ++i) {
    const float w = old.at(name).ptr<float>()[9 * 192 + i];
    squared += std::pow(static_cast<double>(w - y.tensor.ptr<float>()[i]), 2);
    origin += static_cast<double>(w) * static_cast<double>(w);
  }
  EXPECT_LT(std::sqrt(squared / origin), 0.2);  // a wrong row or a wrong transpose gives about 1.4
  EXPECT_GT(squared, 0);
}

TEST(quantize_model, replaces_an_older_model_or_changes_nothing) {
  Pool pool(2);
  const Folder good, bad(NAN);
  models::quantize_folder(pool, good.from, good.to);
  const auto before = io::read_file(good.to / "config.json");
  const auto entries = [](const fs::path& p) {
    return std::distance(fs::directory_iterator(p), fs::directory_iterator());
  };

  const std::string text = message([&] { models::quantize_folder(pool, bad.from, good.to); });
  EXPECT_NE(text.find("transformer.h.0.attn.c_attn.weight: weight [3, 7]"), std::string::npos) << text;
  EXPECT_EQ(io::read_file(good.to / "config.json"), before);
  EXPECT_EQ(entries(good.temp.path()), 2) << "leftover files next to the model";

  models::quantize_folder(pool, good.from, good.to, {.options = {.group = 32}});
  EXPECT_EQ(models::read_hf_config(good.to).quant->options.group, 32);
  EXPECT_EQ(entries(good.temp.path()), 2);
}

TEST(quantize_model, says_what_does_not_fit) {
  Pool pool(2);
  const Folder f;
  const std::string group = message([&] { models::quantize_folder(pool, f.from, f.to, {.options = {.group = 128}}); });
  EXPECT_NE(group.find("transformer.wte.weight: group size 128 does not divide its K = 64"), std::string::npos)
      << group;
  EXPECT_NE(group.find("that does: 32, 64"), std::string::npos) << group;
  EXPECT_FALSE(fs::exists(f.to));
  EXPECT_NE(message([&] { models::quantize_folder(pool, f.from, f.from); }).find("same folder"), std::string::npos);
  models::quantize_folder(pool, f.from, f.to);
  EXPECT_NE(message([&] { models::quantize_folder(pool, f.to, f.temp / "again"); }).find("quantised already"),
            std::string::npos);
  io::make_folder(f.temp / "photos");
  io::write_file_atomic(f.temp / "photos/cat.jpg", "meow");
  EXPECT_NE(message([&] {
              models::quantize_folder(pool, f.from, f.temp / "photos");
            }).find("files that do not belong to a model"),
            std::string::npos);
  EXPECT_EQ(io::read_file(f.temp / "photos/cat.jpg"), "meow");
}

TEST(quantize_model, a_matrix_that_no_group_divides_stays_as_it_was_when_asked) {
  const io::TempFolder temp;
  Pool pool(2);
  io::ModelConfig c{.family = io::Family::llama, .layers = 1, .heads = 4, .width = 64, .context = 32, .vocab = 70};
  c.ffn = 100;
  models::resolve(c);
  models::LanguageModel::create(c, 1, false).save(temp / "model");
  EXPECT_NE(message([&] { models::quantize_folder(pool, temp / "model", temp / "int4"); }).find("--keep-odd"),
            std::string::npos);
  const auto report = models::quantize_folder(pool, temp / "model", temp / "int4", {.keep_odd = true});
  const std::string odd = "model.layers.0.mlp.down_proj.weight", even = "model.layers.0.mlp.up_proj.weight";
  const auto old = io::TensorFolder::open(temp / "model"), now = io::TensorFolder::open(temp / "int4");
  expect_same(old.at(odd), now.at(odd));
  EXPECT_FALSE(now.contains(even));
  EXPECT_NE(to_text(report).find(odd), std::string::npos) << to_text(report);
  const std::vector<std::int32_t> tokens{1, 2, 3, 4, 5};
  EXPECT_NEAR(infer::evaluate(models::LanguageModel::open(temp / "int4"), pool, tokens).loss,
              infer::evaluate(models::LanguageModel::open(temp / "model"), pool, tokens).loss, 0.05);

  c.width = 48, c.ffn = 80, c.head_dim = 0;
  models::resolve(c);
  models::LanguageModel::create(c, 1, false).save(temp / "odd");
  EXPECT_NE(message([&] {
              models::quantize_folder(pool, temp / "odd", temp / "none", {.keep_odd = true});
            }).find("nothing to quantise"),
            std::string::npos);
}

/// Smaller groups would divide it.
TEST(quantize_model, a_matrix_that_this_group_does_not_divide_stays_as_it_was_when_asked) {
  const io::TempFolder temp;
  Pool pool(2);
  io::ModelConfig c{.family = io::Family::llama, .layers = 1, .heads = 4, .width = 128, .context = 32, .vocab = 70};
  c.ffn = 160;
  models::resolve(c);
  models::LanguageModel::create(c, 1, false).save(temp / "model");
  const auto report =
      models::quantize_folder(pool, temp / "model", temp / "int4", {.options = {.group = 128}, .keep_odd = true});
  EXPECT_NE(to_text(report).find("unchanged: 128 does not divide its inputs"), std::string::npos) << to_text(report);
  const std::string odd = "model.layers.0.mlp.down_proj.weight", even = "model.layers.0.mlp.up_proj.weight";
  const auto old = io::TensorFolder::open(temp / "model"), now = io::TensorFolder::open(temp / "int4");
  expect_same(old.at(odd), now.at(odd));
  EXPECT_FALSE(now.contains(even));
  const std::vector<std::int32_t> tokens{1, 2, 3, 4, 5};
  EXPECT_NEAR(infer::evaluate(models::LanguageModel::open(temp / "int4"), pool, tokens).loss,
              infer::evaluate(models::LanguageModel::open(temp / "model"), pool, tokens).loss, 0.05);
}

}  // namespace
}  // namespace hpcdl::quant
