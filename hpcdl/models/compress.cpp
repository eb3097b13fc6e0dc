#include "hpcdl/models/compress.h"

#include <fmt/format.h>

#include <map>
#include <string>

#include "hpcdl/core/error.h"
#include "hpcdl/models/compressed_config.h"
#include "hpcdl/models/decoder.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/hf_config.h"
#include "hpcdl/models/packed_weights.h"
#include "hpcdl/models/quantize.h"

namespace hpcdl::models {

quant::CompressReport compress_folder(Pool& pool, const io::fs::path& from, const io::fs::path& to,
                                      quant::CompressModelOptions options) {
  require(!io::fs::exists(from / "adapter_config.json"), "compress",
          "{}: expected a model, found an adapter: merge it into its model with hpcdl adapter merge", from.string());
  const io::ModelConfig config = read_hf_config(from);
  require_plain(from, "compress");
  require(!config.quant, "compress", "{}: the model is quantised; start from the original", from.string());
  require_uncompressed(config, from, "compress");
  const DecoderSpec spec = row_of(config.family).decoder(config);
  Decoder decoder(config, spec);
  std::map<std::string, bool> layers;  // by the names of their matrices; whether they are stored (in, out)
  decoder.for_each_compressible([&](const std::string& name, const nn::Linear& layer) {
    layers.emplace(name, layer.layout == nn::Layout::in_out);
  });
  options.layer = [layers, spec](const std::string& name,
                                 const Spec& tensor) -> std::optional<quant::CompressibleLayer> {
    constexpr std::string_view kEnd = ".weight";
    const bool widens = tensor.dtype == DType::f32 || tensor.dtype == DType::bf16 || tensor.dtype == DType::f16;
    if (!name.ends_with(kEnd) || tensor.shape.rank() != 2 || !widens) return std::nullopt;
    const auto bare = name.substr(0, name.size() - kEnd.size());
    auto found = layers.find(bare);
    if (found == layers.end())
      found = layers.find(fmt::format("{}{}", spec.prefix, bare));  // a decoder without its head
    if (found == layers.end()) return std::nullopt;
    return quant::CompressibleLayer{.name = found->first, .transposed = found->second};
  };
  options.leave_out = [spec, head = fmt::format("{}.weight", spec.head), tied = config.tied](const std::string& name) {
    return spec.is_no_parameter(name) || (tied && name == head);
  };
  return quant::compress_model(pool, from, to, options);
}

}  // namespace hpcdl::models
