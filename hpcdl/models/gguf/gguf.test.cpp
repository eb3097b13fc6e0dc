// Models of every family as GGUF files: what llama.cpp's own package packs is the model of the folder, and so is what we
// write.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "hpcdl/core/error.h"
#include "hpcdl/instance.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/gguf/file.h"
#include "hpcdl/io/gguf/writer.h"
#include "hpcdl/io/python_for_tests.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/gguf/export.h"
#include "hpcdl/models/gguf/names.h"
#include "hpcdl/models/hf_config.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/resave.h"
#include "hpcdl/models/tiny_for_tests.h"
#include "hpcdl/rng.h"

namespace hpcdl::models {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = fs::path(HPCDL_SOURCE_DIR) / "hpcdl/models/golden";

std::vector<float> logits(const LanguageModel& m) {
  Pool pool(1);
  StepParams params;
  Stream stream(pool, &params);
  Graph g({.inference = true});
  const auto tokens = tiny_ids(5);
  const auto length = std::min<std::int64_t>(16, m.config().context);
  const Var in = g.input("tokens", {{1, length}, DType::i32});
  const Var out = g.keep(m.logits(g, in));
  const Instance exe(g.finish());
  std::memcpy(exe.tensor(in).data(), tokens.data(), static_cast<std::size_t>(length) * 4);
  exe.run(stream);
  const View v = exe.tensor(out);
  return {v.ptr<float>(), v.ptr<float>() + v.size()};
}

/// Largest difference relative to the largest magnitude of `want`.
double distance(const std::vector<float>& got, const std::vector<float>& want) {
  double worst = 0, top = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    worst = std::max(worst, std::fabs(double{got[i]} - double{want[i]}));
    top = std::max(top, std::fabs(double{want[i]}));
  }
  return got.size() == want.size() ? worst / top : HUGE_VAL;
}

void expect_same_weights(const LanguageModel& a, const LanguageModel& b) {
  ASSERT_EQ(a.parameters().size(), b.parameters().size());
  for (std::size_t i = 0; i < a.parameters().size(); ++i) {
    const auto &p = a.parameters()[i], &q = b.parameters()[i];
    ASSERT_EQ(p.name, q.name);
    ASSERT_EQ(p.memory.spec(), q.memory.spec()) << p.name;
    EXPECT_EQ(std::memcmp(p.memory.data(), q.memory.data(), static_cast<std::size_t>(p.memory.bytes())), 0) << p.name;
  }
}

/// The folder of a golden model; or a new one for the families whose golden models llama.cpp would compute differently.
fs::path folder_of(const std::string& name, const io::TempFolder& tmp) {
  for (const auto family : {io::Family::gemma2, io::Family::gemma3_text, io::Family::mixtral}) {
    if (name != io::enum_name(family)) continue;
    auto config = tiny(family);
    if (family == io::Family::gemma2) config.score_cap = 50, config.logit_cap = 30, config.tied = true;
    LanguageModel::create(config, 6, false).save(tmp / name);
    return tmp / name;
  }
  return kGolden / name;
}

/// Models that llama.cpp computes as we do.
constexpr const char* kModels[] = {"gpt2",
                                   "llama",
                                   "llama_head_dim_bf16",
                                   "llama_rope_linear",
                                   "llama_rope_llama3",
                                   "llama_rope_yarn",
                                   "llama_tied_bias_sharded",
                                   "mistral",
                                   "phi3",
                                   "phi3_longrope_short",
                                   "phi3_window",
                                   "qwen2",
                                   "qwen3",
                                   "gemma2",
                                   "gemma3_text",
                                   "mixtral",
                                   "qwen3_moe_sum_to_one"};

/// F32 both ways: weights to the bit, and logits as far as epsilon and bases of angles, which the file holds in F32, allow.
TEST(gguf_models, a_file_holds_the_model_of_its_folder) {
  Pool pool(2);
  for (const char* name : kModels) {
    SCOPED_TRACE(name);
    const io::TempFolder tmp;
    const auto file = tmp / "m.gguf", source = folder_of(name, tmp);
    write_gguf(source, read_hf_config(source), file, io::GgufType::f32, pool);
    const ComputeType f32{DType::f32, &pool};
    const auto folder = LanguageModel::open(source, {}, {}, f32), model = LanguageModel::open(file, {}, {}, f32);
    expect_same_weights(model, folder);
    EXPECT_LT(distance(logits(model), logits(folder)), 1e-5);

    const auto back = tmp / "back";
    resave(file, read_hf_config(file), back, {}, pool);
    expect_same_weights(LanguageModel::open(back, {}, {}, f32), folder);
    EXPECT_LT(distance(logits(LanguageModel::open(back, {}, {}, f32)), logits(folder)), 1e-5);
  }
}

TEST(gguf_models, quantised_types_come_near) {
  Pool pool(2);
  io::ModelConfig c{.family = io::Family::llama, .layers = 2, .heads = 4, .width = 256, .context = 32};
  c.ffn = 512, c.vocab = 300, c.tied = false;
  resolve(c);
  const io::TempFolder tmp;
  LanguageModel::create(c, 3, false).save(tmp / "model");
  const auto config = read_hf_config(tmp / "model");
  const auto want = logits(LanguageModel::open(tmp / "model"));
  for (const auto& [type, bound] : {std::pair{io::GgufType::f16, 2e-3},
                                    {io::GgufType::bf16, 2e-2},
                                    {io::GgufType::q8_0, 4e-2},
                                    {io::GgufType::q6_k, 0.1},
                                    {io::GgufType::q4_k, 0.4},
                                    {io::GgufType::q4_0, 0.5}}) {
    const auto report = write_gguf(tmp / "model", config, tmp / "m.gguf", type, pool);
    EXPECT_EQ(report.in_other_types, 0);
    const auto exact = logits(LanguageModel::open(tmp / "m.gguf", {}, {}, {DType::f32, &pool}));
    EXPECT_LT(distance(exact, want), bound) << io::info_of(type).name;
    const auto unsaid = LanguageModel::open(tmp / "m.gguf");
    if (io::info_of(type).quantized()) {
      ASSERT_NE(unsaid.codec(), nullptr) << io::info_of(type).name;
      EXPECT_EQ(unsaid.loading().substr(0, 9), "quantised");
      EXPECT_EQ(unsaid.matrix_type(), DType::none);
      EXPECT_LT(distance(logits(unsaid), exact), 1e-5) << io::info_of(type).name;
      EXPECT_LT(unsaid.bytes(), LanguageModel::open(tmp / "m.gguf", {}, {}, {DType::bf16, &pool}).bytes());
    } else {
      EXPECT_EQ(unsaid.matrix_type(), type == io::GgufType::f16 ? DType::f16 : DType::bf16);
      EXPECT_LT(distance(logits(unsaid), exact), 3e-2) << io::info_of(type).name;
    }
  }
}

/// Nothing of this family is stored in another order, so that all of it stays in the file.
TEST(gguf_models, quantised_layers_stream) {
  Pool pool(2);
  io::ModelConfig c{.family = io::Family::qwen2, .layers = 6, .heads = 4, .width = 128, .context = 32};
  c.ffn = 512, c.vocab = 100, c.tied = true;
  resolve(c);
  const io::TempFolder tmp;
  LanguageModel::create(c, 3, false).save(tmp / "model");
  write_gguf(tmp / "model", read_hf_config(tmp / "model"), tmp / "m.gguf", io::GgufType::q8_0, pool);
  const auto mapped = LanguageModel::open(tmp / "m.gguf");
  EXPECT_EQ(mapped.converted_bytes(), 0);
  const auto streamed =
      LanguageModel::open(tmp / "m.gguf", {}, {.mode = io::LoadMode::direct, .ram = mapped.bytes() * 3 / 4});
  EXPECT_NE(streamed.loading().find("layers pass through"), std::string::npos) << streamed.loading();
  EXPECT_EQ(logits(streamed), logits(mapped));
}

TEST(gguf_models, rows_that_are_no_whole_blocks_fall_back) {
  Pool pool(1);
  const io::TempFolder tmp;
  const auto report = write_gguf(kGolden / "llama_head_dim_bf16", read_hf_config(kGolden / "llama_head_dim_bf16"),
                                 tmp / "m.gguf", io::GgufType::q4_k, pool);
  EXPECT_GT(report.in_other_types, 0);
  LanguageModel::open(tmp / "m.gguf");
}

TEST(gguf_models, options_that_decoded_weights_exclude) {
  Pool pool(1);
  const io::TempFolder tmp;
  write_gguf(kGolden / "llama", read_hf_config(kGolden / "llama"), tmp / "m.gguf", io::GgufType::q8_0, pool);
  EXPECT_THROW(LanguageModel::open(tmp / "m.gguf", {}, {.ram = 1 << 30}), UsageError);
  const auto decoded = LanguageModel::open(tmp / "m.gguf", {}, {}, {DType::f32, &pool});
  EXPECT_EQ(decoded.loading().substr(0, 7), "decoded");
  EXPECT_EQ(decoded.codec(), nullptr);
}

TEST(gguf_models, rows_of_heads_alternate) {
  for (std::int64_t r = 0; r < 48; ++r) {
    EXPECT_EQ(model_row(stored_row(r, 12), 12), r);
    EXPECT_EQ(stored_row(r, 12) / 12, r / 12);
  }
  EXPECT_EQ(stored_row(1, 4), 2);
  EXPECT_EQ(stored_row(2, 4), 1);
}

/// gguf-py's names, packed by numpy: an independent writer.
constexpr const char* kPack = R"(
import json, sys, gguf, numpy as np
from safetensors import safe_open
folder, out = sys.argv[1:]
c = json.load(open(folder + "/config.json"))
arch = {"llama": "LLAMA", "qwen3": "QWEN3", "gemma2": "GEMMA2", "phi3": "PHI3", "gpt2": "GPT2"}[c["model_type"]]
names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch], c.get("num_hidden_layers", c.get("n_layer")))
w = gguf.GGUFWriter(out, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH[arch]])
get = lambda *keys: next(c[k] for k in keys if c.get(k) is not None)
heads = get("num_attention_heads", "n_head")
width = get("hidden_size", "n_embd")
w.add_block_count(get("num_hidden_layers", "n_layer"))
w.add_context_length(get("max_position_embeddings", "n_positions"))
w.add_embedding_length(width)
w.add_head_count(heads)
if arch == "GPT2":
    w.add_feed_forward_length(c.get("n_inner") or 4 * width)
    w.add_layer_norm_eps(c["layer_norm_epsilon"])
else:
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_freq_base(c.get("rope_parameters", c).get("rope_theta", 10000.0))
    d = c.get("head_dim") or width // heads
    w.add_key_length(d)
    w.add_value_length(d)
if arch == "GEMMA2":
    w.add_attn_logit_softcapping(c["attn_logit_softcapping"])
    w.add_final_logit_softcapping(c["final_logit_softcapping"])
    w.add_sliding_window(c["sliding_window"])
def permute(x, n):
    return x.reshape(n, 2, x.shape[0] // n // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)
with safe_open(folder + "/model.safetensors", "numpy") as f:
    for name in f.keys():
        x = f.get_tensor(name)
        if name.endswith((".attn.bias", ".masked_bias")):
            continue
        if arch == "LLAMA" and ".q_proj." in name:
            x = permute(x, heads)
        if arch == "LLAMA" and ".k_proj." in name:
            x = permute(x, c["num_key_value_heads"])
        if arch == "GEMMA2" and name.endswith("norm.weight"):
            x = x + np.float32(1)
        if arch == "GPT2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
            x = x.T
        w.add_tensor(names.get_name(name, (".weight", ".bias")), np.ascontiguousarray(x))
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()
)";

TEST(gguf_models, files_packed_with_gguf_py_are_the_models_of_their_folders) {
  const auto python = io::find_python("gguf, numpy, safetensors");
  if (!python) GTEST_SKIP() << "no Python with gguf, numpy and safetensors";
  Pool pool(2);
  const ComputeType f32{DType::f32, &pool};
  for (const char* name : {"gpt2", "llama", "phi3", "qwen3", "gemma2"}) {
    SCOPED_TRACE(name);
    const io::TempFolder tmp;
    const auto file = tmp / "m.gguf", source = folder_of(name, tmp);
    bool ok = false;
    const auto out = io::run_python(*python, kPack, source.string() + " " + file.string(), ok);
    ASSERT_TRUE(ok) << out;
    const auto folder = LanguageModel::open(source, {}, {}, f32), model = LanguageModel::open(file, {}, {}, f32);
    // 1 + w of Gemma's norms has been rounded.
    if (std::string_view(name) != "gemma2") expect_same_weights(model, folder);
    EXPECT_LT(distance(logits(model), logits(folder)), 1e-5);
  }
}

TEST(gguf_models, what_llama_cpp_computes_differently_is_not_written) {
  Pool pool(1);
  const io::TempFolder tmp;
  for (const auto& [name, part] : {std::pair{"gemma2", "scores divided by the square root of 50"},
                                   {"mistral_window", "windows of attention"},
                                   {"qwen3_moe", "do not sum to one"}}) {
    try {
      write_gguf(kGolden / name, read_hf_config(kGolden / name), tmp / "m.gguf", io::GgufType::f32, pool);
      ADD_FAILURE() << name << " was written";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
    EXPECT_FALSE(fs::exists(tmp / "m.gguf"));
  }
}

TEST(gguf_models, a_damaged_file_is_a_model_or_an_error) {
  Pool pool(1);
  const io::TempFolder tmp;
  write_gguf(kGolden / "llama", read_hf_config(kGolden / "llama"), tmp / "m.gguf", io::GgufType::q8_0, pool);
  const auto good = io::read_file(tmp / "m.gguf");
  const auto header = static_cast<std::size_t>(io::GgufFile::open(tmp / "m.gguf").tensors().front()->offset);
  const Rng rng{9, 3};
  std::uint64_t at = 0;
  for (int round = 0; round < 400; ++round) {
    auto bad = good;
    const auto place = rng.below(at++, header);
    bad[place] = static_cast<char>(rng.below(at++, 256));
    io::write_file_atomic(tmp / "bad.gguf", bad);
    try {
      LanguageModel::open(tmp / "bad.gguf");
    } catch (const Error&) {}
  }
}

TEST(gguf_models, other_architectures_are_named) {
  const io::TempFolder tmp;
  io::GgufValues values;
  values.add("general.architecture", "mamba");
  io::GgufWriter(tmp / "m.gguf", values, {}).commit();
  try {
    read_hf_config(tmp / "m.gguf");
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("expected llama, qwen2, qwen3, qwen3moe, gemma2, gemma3, phi3 or gpt2, found "
                                         "\"mamba\""),
              std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace hpcdl::models
