#include "hpcdl/models/quantize.h"

#include <fmt/format.h>

#include <string>

#include "hpcdl/core/error.h"
#include "hpcdl/models/compressed_config.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/hf_config.h"
#include "hpcdl/models/layer_divergence.h"
#include "hpcdl/models/packed_weights.h"
#include "hpcdl/quant/codecs.h"
#include "hpcdl/quant/dequantize.h"

namespace hpcdl::models {

quant::Treatment treatment(const DecoderSpec& decoder, bool tied, const std::string& name, const Spec& spec) {
  using enum quant::Treatment;
  if (decoder.is_no_parameter(name) || (tied && name == fmt::format("{}.weight", decoder.head))) return leave_out;
  const bool wide_enough = spec.shape.rank() == 2 && spec[0] >= 16 && spec[1] >= 16 && spec[0] * spec[1] >= 16 * 32;
  const bool widens = spec.dtype == DType::f32 || spec.dtype == DType::bf16 || spec.dtype == DType::f16;
  const bool is_router = std::ranges::any_of(decoder.block, [&](const auto& m) {
    return m.part == BlockPart::router && name.ends_with(fmt::format(".{}.weight", m.name));
  });
  const bool position = !decoder.rotary() && name.ends_with(fmt::format("{}.weight", decoder.positions));
  if (!wide_enough || !widens || position || is_router || !name.ends_with(".weight")) return copy;
  const bool of_block = std::ranges::any_of(
      decoder.block, [&](const auto& m) { return name.ends_with(fmt::format(".{}.weight", m.name)); });
  return of_block && decoder.layout == nn::Layout::in_out ? conv1d : matrix;
}

std::function<quant::Treatment(const std::string&, const Spec&)> treatments(const io::ModelConfig& config) {
  return [decoder = row_of(config.family).decoder(config), tied = config.tied](
             const std::string& name, const Spec& spec) { return treatment(decoder, tied, name, spec); };
}

quant::ModelReport quantize_folder(Pool& pool, const io::fs::path& from, const io::fs::path& to,
                                   quant::QuantizeModelOptions options) {
  const io::ModelConfig config = read_hf_config(from);
  require_plain(from, "quant");
  require(!config.quant, "quant", "{}: the model is quantised already; start from the original", from.string());
  require_uncompressed(config, from, "quant");
  if (row_of(config.family).mixture && !options.codec->matrix) {
    std::string others;
    for (const auto* c : quant::codecs())
      if (c->matrix) others += fmt::format("{}{}", others.empty() ? "" : ", ", c->name);
    fail("quant", "{}: experts cannot be quantised to {}: choose {}", from.string(), options.codec->name, others);
  }
  options.treatment = treatments(config);
  return quant::quantize_model(pool, from, to, options);
}

void measure_layers(Pool& pool, const io::fs::path& from, const io::fs::path& to, std::span<const std::int32_t> tokens,
                    quant::ModelReport& report) {
  const auto model = LanguageModel::open(from);
  const DecoderSpec decoder = row_of(model.config().family).decoder(model.config());
  const auto originals = io::TensorFolder::open(from), files = io::TensorFolder::open(to);
  LayerDivergence divergence(model, pool, tokens);
  for (auto& layer : report.layers) {
    if (!layer.quantized) continue;
    nn::Codec::Parts<View> parts;
    for (std::size_t i = 0; i < parts.size(); ++i)
      if (const auto name = layer.name + std::string(layer.codec->names[i].in_files);
          name != layer.name && files.contains(name))
        parts[i] = files.at(name);
    const auto values = quant::dequantize(pool, *layer.codec, parts, layer.shape[0]);
    const bool transposed = treatment(decoder, model.config().tied, layer.name, originals.at(layer.name).spec()) ==
                            quant::Treatment::conv1d;
    layer.divergence = divergence.of(layer.name, values.tensor, transposed);
  }
}

}  // namespace hpcdl::models
