#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "hpcdl/infer/engine_for_tests.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/models/adapter_options.h"
#include "hpcdl/rng.h"

namespace hpcdl::infer {

/// Writes an adapter of the model in `base` whose matrices, and biases if it has any, are drawn by `seed`.
inline void write_adapter(const std::filesystem::path& base, const std::filesystem::path& to,
                          const models::AdapterOptions& options, std::uint64_t seed) {
  auto model = models::LanguageModel::open_for_adapting(base, options, seed);
  std::uint64_t stream = 0;
  for (auto& p : model.parameters()) {
    const Rng rng{seed, ++stream};
    for (std::int64_t i = 0; i < p.memory.size(); ++i)
      p.memory.ptr<float>()[i] += 0.3f * static_cast<float>(rng.normal(static_cast<std::uint64_t>(i)));
  }
  model.save(to);
}

/// A model of a family in tmp/base, and adapters of it that differ in ranks, scales and layers, in tmp/NAME.
struct AdaptedModel {
  explicit AdaptedModel(io::Family family) {
    using models::AdapterMethod;
    with_clear_logits(family).save(tmp / "base");
    write_adapter(tmp / "base", tmp / "all", {.method = AdapterMethod::lora, .r = 3, .alpha = 5}, 21);
    write_adapter(tmp / "base", tmp / "some",
                  {.method = AdapterMethod::lora, .r = 2, .alpha = 2, .targets = {".*attn\\..*"}}, 22);
    write_adapter(tmp / "base", tmp / "last",
                  {.method = AdapterMethod::lora, .r = 8, .alpha = 3, .rs = true, .targets = {".*\\.1\\..*"}}, 23);
  }
  /// The model with all of them as choices.
  models::LanguageModel open(const models::ComputeType& compute = {}, Device device = {}) const {
    io::LoadOptions load{.device = device};
    for (const auto& name : names()) load.choices.push_back({name, tmp / name});
    return models::LanguageModel::open(tmp / "base", {}, load, compute);
  }
  /// The model with one of them for all texts; -1: with none.
  models::LanguageModel open_with(std::int32_t adapter) const {
    if (adapter < 0) return models::LanguageModel::open(tmp / "base");
    return models::LanguageModel::open(tmp / "base", {}, {.adapter = tmp / names()[static_cast<std::size_t>(adapter)]});
  }
  static std::vector<std::string> names() { return {"all", "some", "last"}; }

  io::TempFolder tmp;
};

}  // namespace hpcdl::infer
