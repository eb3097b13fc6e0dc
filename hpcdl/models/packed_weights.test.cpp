// A model folder that another program has quantised opens as the model that its numbers are.

#include "hpcdl/models/packed_weights.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/core/f8.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/safetensors_writer.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/models/hf_config.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/quantize.h"
#include "hpcdl/models/resave.h"
#include "hpcdl/models/tiny_for_tests.h"

namespace hpcdl::models {
namespace {

/// A folder whose matrices of blocks are F8, with a scale for each block of 16 x 16, and the weights that it stands for.
struct Packed {
  io::TempFolder tmp;
  io::fs::path folder = tmp / "packed";
  std::map<std::string, std::vector<float>> weights;

  Packed() {
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
      const auto rows = t.spec[0], columns = t.spec[1], down = (rows + 15) / 16, across = (columns + 15) / 16;
      std::vector<f8_e4m3> codes;
      std::vector<float> scales;
      for (std::int64_t i = 0; i < down * across; ++i) scales.push_back(1e-4f * static_cast<float>(i + 1));
      for (std::int64_t i = 0; i < rows * columns; ++i) {
        const float scale = scales[static_cast<std::size_t>(i / columns / 16 * across + i % columns / 16)];
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
    config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {16, 16}}};
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
