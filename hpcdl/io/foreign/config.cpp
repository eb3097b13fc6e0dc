#include "hpcdl/io/foreign/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"

namespace hpcdl::io {
namespace {

std::int64_t group_in(const JsonObject& o) {
  const auto group = o.get_or<std::int64_t>("group_size", o.get_or<std::int64_t>("q_group_size", 128));
  require(group == -1 || (group > 0 && group <= 1 << 24), "io",
          "{}: group_size: expected a number of inputs, or -1 for all, found {}", o.where(), group);
  return group == -1 ? 0 : group;
}

void read_gptq(const JsonObject& o, PackConfig& c) {
  c.bits = o.get_or<std::int64_t>("bits", 4), c.group = group_in(o);
  require(c.bits == 2 || c.bits == 3 || c.bits == 4 || c.bits == 8, "io", "{}: bits: expected 2, 3, 4 or 8, found {}",
          o.where(), c.bits);
  const auto format = o.get_or<std::string>("checkpoint_format", "gptq");
  require(format == "gptq" || format == "gptq_v2", "io", "{}: checkpoint_format: expected gptq or gptq_v2, found {}",
          o.where(), shown(format));
  c.zeros_less_one = format == "gptq";
}

void read_awq(const JsonObject& o, PackConfig& c) {
  c.bits = o.get_or<std::int64_t>("bits", o.get_or<std::int64_t>("w_bit", 4)), c.group = group_in(o);
  require(c.bits == 4, "io", "{}: bits: expected 4, found {}", o.where(), c.bits);
  auto version = o.get_or<std::string>("version", "gemm");
  std::ranges::transform(version, version.begin(), [](unsigned char l) { return std::tolower(l); });
  require(version == "gemm", "io", "{}: version: expected gemm, found {}", o.where(), shown(version));
  require(o.get_or("zero_point", true), "io", "{}: zero_point: expected true, found false", o.where());
}

void read_fp8(const JsonObject& o, PackConfig& c) {
  const auto format = o.get_or<std::string>("fmt", "e4m3");
  require(format == "e4m3", "io", "{}: fmt: expected e4m3, found {}", o.where(), shown(format));
  const Json* block = o.find("weight_block_size");
  const auto size = [&](std::size_t i) {
    const bool good = block && block->is_array() && block->size() == 2 && (*block)[i].is_number_unsigned() &&
                      (*block)[i].get<std::uint64_t>() >= 1 && (*block)[i].get<std::uint64_t>() <= 1 << 20;
    require(good, "io", "{}: weight_block_size: expected the rows and columns of a block, such as [128, 128], found {}",
            o.where(), block ? shown(block->dump()) : "none");
    return (*block)[i].get<std::int64_t>();
  };
  c.block_rows = size(0), c.block_columns = size(1);
}

}  // namespace

std::optional<PackConfig> pack_config_in(const Json& quantization_config, DType dtype, const std::string& where) {
  const JsonObject o(quantization_config, where);
  const auto method = o.get_or<std::string>("quant_method", "");
  const auto* known =
      std::ranges::find(EnumNames<PackMethod>::values, method, &std::pair<PackMethod, std::string_view>::second);
  if (known == std::end(EnumNames<PackMethod>::values)) return std::nullopt;
  PackConfig c{.method = known->first};
  c.dtype = dtype;
  if (c.method == PackMethod::gptq) read_gptq(o, c);
  if (c.method == PackMethod::awq) read_awq(o, c);
  if (c.method == PackMethod::fp8) read_fp8(o, c);
  return c;
}

}  // namespace hpcdl::io
