#include "hpcdl/models/compressed_config.h"

#include "hpcdl/core/error.h"

namespace hpcdl::models {

void require_uncompressed(const io::ModelConfig& config, const io::fs::path& folder, std::string_view area) {
  require(config.compressed.empty(), area, "{}: the model is compressed (hpcdl compress): start from the original",
          folder.string());
}

void require_on_gpu(const io::ModelConfig& config) {
  for (const auto& [name, s] : config.compressed)
    if (s.method != nn::Method::svd)
      fail_usage("model",
                 "{} is compressed with method {}, which only a CPU multiplies: use the CPU, or compress the original "
                 "model with --method svd",
                 name, nn::method_name(s.method));
}

}  // namespace hpcdl::models
