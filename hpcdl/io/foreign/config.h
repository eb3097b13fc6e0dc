#pragma once
// How other programs say in config.json that the matrices of a folder are quantised.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "hpcdl/dtype.h"
#include "hpcdl/io/config_visitor.h"
#include "hpcdl/io/json.h"

namespace hpcdl::io {

enum class PackMethod : std::uint8_t { bitsandbytes, gptq, awq, fp8 };
template <> struct EnumNames<PackMethod> {
  static constexpr std::pair<PackMethod, std::string_view> values[] = {{PackMethod::bitsandbytes, "bitsandbytes"},
                                                                       {PackMethod::gptq, "gptq"},
                                                                       {PackMethod::awq, "awq"},
                                                                       {PackMethod::fp8, "fp8"}};
};

struct PackConfig {
  PackMethod method = PackMethod::bitsandbytes;
  std::int64_t bits = 4;                               // of gptq and awq
  std::int64_t group = 128;                            // inputs with one scale; 0: all (gptq, awq)
  bool zeros_less_one = true;                          // gptq of version 1 stores zeros less one
  std::int64_t block_rows = 128, block_columns = 128;  // with one scale (fp8)
  DType dtype = DType::bf16;                           // of the model's other weights

  bool operator==(const PackConfig&) const = default;
};

/// From quantization_config of config.json; `dtype` is that of the model. None for a method that is not in the list. Throws
/// Error that names the key for what cannot be read.
std::optional<PackConfig> pack_config_in(const Json& quantization_config, DType dtype, const std::string& where);

}  // namespace hpcdl::io
