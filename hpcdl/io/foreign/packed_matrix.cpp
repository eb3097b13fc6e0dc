#include "hpcdl/io/foreign/packed_matrix.h"

#include <string_view>

#include "hpcdl/core/error.h"

namespace hpcdl::io {
namespace {

constexpr std::string_view kWeight = "weight";

/// Ends of the tensors of a matrix, behind the stem.
constexpr std::string_view kEnds[] = {"qweight",          "qzeros", "scales",       "g_idx",
                                      "weight_scale_inv", "SCB",    "weight_format"};

}  // namespace

std::optional<PackedMatrix> find_packed(const PackConfig& config, const TensorFolder& files, const std::string& name) {
  if (!name.ends_with(".weight")) return std::nullopt;
  const auto stem = name.substr(0, name.size() - kWeight.size());
  switch (config.method) {
    case PackMethod::bitsandbytes: return find_bitsandbytes(config, files, stem);
    case PackMethod::gptq: return find_gptq(config, files, stem);
    case PackMethod::awq: return find_awq(config, files, stem);
    case PackMethod::fp8: return find_block_fp8(config, files, stem);
  }
  fail("io", "there is no method {} of packing", static_cast<int>(config.method));
}

std::string parameter_of(const std::string& tensor) {
  if (const auto at = tensor.find(".weight."); at != std::string::npos)
    return tensor.substr(0, at + 1 + kWeight.size());
  for (const auto end : kEnds)
    if (tensor.ends_with(end) && tensor.size() > end.size() && tensor[tensor.size() - end.size() - 1] == '.')
      return tensor.substr(0, tensor.size() - end.size()) + std::string(kWeight);
  return tensor;
}

}  // namespace hpcdl::io
