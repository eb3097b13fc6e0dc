// A model folder that another program has quantised opens as the model that its numbers are.

#include "hpcdl/models/packed_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/core/f8.h"
#include "hpcdl/instance.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/safetensors_writer.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/models/export_bitsandbytes.h"
#include "hpcdl/models/hf_config.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/quantize.h"
#include "hpcdl/models/resave.h"
#include "hpcdl/models/tiny_for_tests.h"
#include "hpcdl/ops/quant_linear/four_bit_values.h"
#include "hpcdl/quant/codecs.h"
#include "hpcdl/quant/four_bits.h"

namespace hpcdl::models {
namespace {

/// A folder whose matrices of blocks are F8, with a scale for each block of `side` x `side`, and the weights that it stands for.
struct Packed {
  io::TempFolder tmp;
  io::fs::path folder = tmp / "packed";
  std::map<std::string, std::vector<float>> weights;

  explicit Packed(std::int64_t side = 16) {
    const auto plain = tmp / "plain";
    LanguageModel::create(tiny(io::Family::llama), 4, false).save(plain);
    const auto files = io::TensorFolder::open(plain);
    std::vector<io::NamedSpec> specs;
    std::map<std::string, OwnedTensor> tensors;
    for (const auto& t : files.tensors()) {
      const auto* x = files.at(t.name).ptr<float>();
      auto& want = weights[t.name];
      if (t.name.find("proj") == std::string::npos) {
        want.assign(x, x + t.spec.size());
        add(specs, tensors, t.name, t.spec, x);
        continue;
      }
      const auto rows = t.spec[0], columns = t.spec[1], down = (rows + side - 1) / side,
                 across = (columns + side - 1) / side;
      std::vector<f8_e4m3> codes;
      std::vector<float> scales;
      for (std::int64_t i = 0; i < down * across; ++i) scales.push_back(1e-4f * static_cast<float>(i + 1));
      for (std::int64_t i = 0; i < rows * columns; ++i) {
        const float scale = scales[static_cast<std::size_t>(i / columns / side * across + i % columns / side)];
        codes.push_back(to_f8<f8_e4m3>(x[i] / scale));
        want.push_back(from_f8(codes.back()) * scale);
      }
      add(specs, tensors, t.name, {t.spec.shape, DType::f8_e4m3}, codes.data());
      add(specs, tensors, t.name + "_scale_inv", {{down, across}, DType::f32}, scales.data());
    }
    io::fs::create_directories(folder);
    io::TensorFolderWriter writer(folder, specs);
    for (const auto& s : specs) writer.write(s.name, tensors.at(s.name).tensor);
    writer.commit();
    auto config = io::read_json(plain / "config.json");
    config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {side, side}}};
    io::write_file_atomic(folder / "config.json", config.dump());
  }

  static void add(std::vector<io::NamedSpec>& specs, std::map<std::string, OwnedTensor>& tensors,
                  const std::string& name, const Spec& spec, const void* values) {
    specs.push_back({name, spec});
    OwnedTensor t(spec);
    std::memcpy(t.tensor.data(), values, static_cast<std::size_t>(spec.bytes()));
    tensors.emplace(name, std::move(t));
  }

  void expect_in(const LanguageModel& model) const {
    ASSERT_EQ(model.parameters().size(), weights.size());
    for (const auto& p : model.parameters()) {
      ASSERT_EQ(p.memory.dtype(), DType::f32) << p.name;
      const auto& want = weights.at(p.name);
      EXPECT_EQ(std::memcmp(p.memory.data(), want.data(), want.size() * sizeof(float)), 0) << p.name;
    }
  }
};

TEST(packed_weights, a_model_opens_decoded) {
  const Packed packed;
  Pool pool(2);
  packed.expect_in(LanguageModel::open(packed.folder));
  packed.expect_in(LanguageModel::open(packed.folder, {}, {}, {DType::f32, &pool}));
  packed.expect_in(LanguageModel::open_for_training(packed.folder));
  EXPECT_THROW(LanguageModel::open(packed.folder, {}, {.ram = 1 << 30}), UsageError);
}

std::vector<float> logits(const LanguageModel& m) {
  Pool pool(1);
  StepParams params;
  Stream stream(pool, &params);
  Graph g({.inference = true});
  const auto ids = tiny_ids(5);
  const Var in = g.input("tokens", {{1, 12}, DType::i32}), out = g.keep(m.logits(g, in));
  const Instance exe(g.finish());
  std::memcpy(exe.tensor(in).data(), ids.data(), 12 * sizeof ids[0]);
  exe.run(stream);
  const View v = exe.tensor(out);
  return {v.ptr<float>(), v.ptr<float>() + v.size()};
}

TEST(packed_weights, blocks_of_128_stay_in_8_bits) {
  const Packed packed(128);
  Pool pool(2);
  const auto as_in_file = LanguageModel::open(packed.folder);
  ASSERT_NE(as_in_file.codec(), nullptr);
  EXPECT_EQ(as_in_file.codec()->name, "fp8_blocks");
  const auto got = logits(as_in_file), want = logits(LanguageModel::open(packed.folder, {}, {}, {DType::f32, &pool}));
  double largest = 0;
  for (const float v : want) largest = std::max(largest, std::fabs(double{v}));
  for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-5 * largest) << i;
}

/// The tensors of our NF4, FP4 or INT8 folder under the names and in the shapes of bitsandbytes.
void write_as_bitsandbytes(const io::fs::path& ours, const io::fs::path& to, const std::string& kind) {
  const auto suffix = "." + kind;
  const auto files = io::TensorFolder::open(ours);
  std::vector<io::NamedSpec> specs;
  std::map<std::string, OwnedTensor> tensors;
  const auto flat = [](const View& v) { return Spec{{v.size()}, v.dtype()}; };
  for (const auto& t : files.tensors()) {
    const View v = files.at(t.name);
    const auto ends = [&](std::string_view end) { return t.name.ends_with(end); };
    const auto stem = [&](std::string_view end) { return t.name.substr(0, t.name.size() - end.size()); };
    if (ends(suffix) && kind != "int8") {
      const auto name = stem(suffix);
      Packed::add(specs, tensors, name, {{v.size(), 1}, DType::u8}, v.data());
      Packed::add(specs, tensors, name + ".quant_map", {{16}, DType::f32}, kind == "fp4" ? kFp4Values : kNf4Values);
      io::Json state = {{"quant_type", kind}, {"blocksize", 64}, {"shape", {v[0], 2 * v[1]}}};
      if (const auto table = files.find(name + suffix + "_table")) {
        state["nested_blocksize"] = 256, state["nested_offset"] = double{table->ptr<float>()[256]};
        Packed::add(specs, tensors, name + ".nested_quant_map", {{256}, DType::f32}, table->data());
      }
      const auto text = state.dump();
      Packed::add(specs, tensors, name + ".quant_state.bitsandbytes__" + kind, {{std::ssize(text)}, DType::u8},
                  text.data());
    } else if (ends("4_scale")) {
      Packed::add(specs, tensors, stem(suffix + "_scale") + ".absmax", flat(v), v.data());
    } else if (ends("4_outer")) {
      Packed::add(specs, tensors, stem(suffix + "_outer") + ".nested_absmax", flat(v), v.data());
    } else if (ends(".int8")) {
      Packed::add(specs, tensors, stem(".int8"), v.spec(), v.data());
    } else if (ends(".weight.int8_scale")) {
      Packed::add(specs, tensors, stem("weight.int8_scale") + "SCB", v.spec(), v.data());
    } else if (!ends("4_table")) {
      Packed::add(specs, tensors, t.name, v.spec(), v.data());
    }
  }
  io::fs::create_directories(to);
  io::TensorFolderWriter writer(to, specs);
  for (const auto& s : specs) writer.write(s.name, tensors.at(s.name).tensor);
  writer.commit();
  auto config = io::read_json(ours / "config.json");
  config["quantization_config"] = {{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}};
  io::write_file_atomic(to / "config.json", config.dump());
}

TEST(packed_weights, nf4_fp4_and_int8_stay_as_they_are) {
  io::ModelConfig c{.family = io::Family::llama, .layers = 2, .heads = 4, .width = 64, .context = 32};
  c.ffn = 192, c.vocab = 100, c.tied = false;
  resolve(c);
  const io::TempFolder tmp;
  Pool pool(2);
  LanguageModel::create(c, 3, false).save(tmp / "plain");
  const auto apart = [](const std::vector<float>& a, const std::vector<float>& b) {
    double worst = 0, top = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
      worst = std::max(worst, std::fabs(double{a[i]} - b[i])), top = std::max(top, std::fabs(double{b[i]}));
    return worst / top;
  };
  const auto plain = logits(LanguageModel::open(tmp / "plain"));
  for (const auto& [name, nested, bound] : {std::tuple{"nf4", false, 0.4},
                                            {"nf4", true, 0.4},
                                            {"fp4", false, 0.5},
                                            {"fp4", true, 0.5},
                                            {"int8", false, 0.05}}) {
    SCOPED_TRACE(name);
    const io::fs::path ours = tmp / ("ours" + std::string(name) + (nested ? "2" : "")), theirs = ours.string() + "-bnb";
    quantize_folder(pool, tmp / "plain", ours, {.codec = quant::find_codec(name), .options = {.nested = nested}});
    write_as_bitsandbytes(ours, theirs, name);
    const auto mine = LanguageModel::open(ours), other = LanguageModel::open(theirs);
    ASSERT_NE(other.codec(), nullptr);
    EXPECT_EQ(other.codec()->name, name);
    EXPECT_EQ(logits(mine), logits(other)) << "the same bytes";
    const auto decoded = LanguageModel::open(theirs, {}, {}, {DType::f32, &pool});
    EXPECT_EQ(decoded.codec(), nullptr);
    EXPECT_LT(apart(logits(other), logits(decoded)), 1e-5);
    EXPECT_LT(apart(logits(other), plain), bound);
    EXPECT_LT(other.bytes(), decoded.bytes());
    EXPECT_THROW(other.save(tmp / "saved"), Error);
  }
}

TEST(packed_weights, an_exported_folder_has_the_values_of_nf4) {
  io::ModelConfig c{.family = io::Family::qwen2, .layers = 2, .heads = 4, .width = 64, .context = 32};
  c.ffn = 192, c.vocab = 100, c.tied = true, c.dtype = DType::bf16;
  resolve(c);
  const io::TempFolder tmp;
  Pool pool(2);
  LanguageModel::create(c, 3, false).save(tmp / "plain", DType::bf16);
  for (const bool nested : {false, true}) {
    const auto to = tmp / (nested ? "nested" : "nf4");
    export_bitsandbytes(tmp / "plain", read_hf_config(tmp / "plain"), to, {.nested = nested}, pool);
    const auto model = LanguageModel::open(to), decoded = LanguageModel::open(to, {}, {}, {DType::f32, &pool});
    ASSERT_NE(model.codec(), nullptr);
    const auto files = io::TensorFolder::open(to), plain = io::TensorFolder::open(tmp / "plain");
    const std::string name = "model.layers.1.mlp.down_proj.weight";
    const auto q = quant::quantize_four_bits(pool, plain.at(name), nested ? QuantFormat::nf4_double : QuantFormat::nf4);
    EXPECT_EQ(
        std::memcmp(files.at(name).data(), q.codes.tensor.data(), static_cast<std::size_t>(q.codes.tensor.bytes())), 0);
    EXPECT_EQ(files.contains(name + ".nested_absmax"), nested);
    EXPECT_EQ(files.at("model.embed_tokens.weight").dtype(), DType::bf16);
    const auto a = logits(model), b = logits(decoded);
    for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-4 * (1 + std::fabs(b[i])));
  }
  EXPECT_THROW(export_bitsandbytes(tmp / "nf4", read_hf_config(tmp / "nf4"), tmp / "again", {}, pool), Error);
  LanguageModel::create(tiny(io::Family::gpt2), 3, false).save(tmp / "gpt2");
  EXPECT_THROW(export_bitsandbytes(tmp / "gpt2", read_hf_config(tmp / "gpt2"), tmp / "gpt2-bnb", {}, pool), Error);
}

TEST(packed_weights, a_plain_folder_is_made_of_it) {
  const Packed packed;
  Pool pool(2);
  resave(packed.folder, read_hf_config(packed.folder), packed.tmp / "plain2", {}, pool);
  EXPECT_FALSE(pack_config_of(packed.tmp / "plain2").has_value());
  packed.expect_in(LanguageModel::open(packed.tmp / "plain2"));
}

TEST(packed_weights, it_is_not_quantised_again) {
  const Packed packed;
  Pool pool(1);
  try {
    quantize_folder(pool, packed.folder, packed.tmp / "q");
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("hpcdl convert --to bf16"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace hpcdl::models
