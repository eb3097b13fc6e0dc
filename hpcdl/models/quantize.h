#pragma once
// Language models in few bits.

#include <functional>
#include <span>

#include "hpcdl/models/decoder_spec.h"
#include "hpcdl/quant/quantize_model.h"

namespace hpcdl::models {

/// What quantisation does with a tensor of a model's files: matrices of at least 16 x 32 are quantised, except position
/// embeddings; a tied head and tensors that are not parameters are omitted.
quant::Treatment treatment(const DecoderSpec& decoder, bool tied, const std::string& name, const Spec& spec);

/// treatment() of a model of this config, as quant::QuantizeModelOptions need it.
std::function<quant::Treatment(const std::string& name, const Spec& spec)> treatments(const io::ModelConfig& config);

/// quant::quantize_model() for a Hugging Face folder of any family. Throws Error for a folder that is already quantised,
/// and for a mixture of experts if the format cannot hold experts.
quant::ModelReport quantize_folder(Pool& pool, const io::fs::path& from, const io::fs::path& to,
                                   quant::QuantizeModelOptions options = {});

/// Fills in LayerReport::divergence of the quantised matrices of folder `to`, which quantize_folder() has made from
/// `from`, on the first tokens of a text.
void measure_layers(Pool& pool, const io::fs::path& from, const io::fs::path& to, std::span<const std::int32_t> tokens,
                    quant::ModelReport& report);

}  // namespace hpcdl::models
