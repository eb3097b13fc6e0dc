#include "hpcdl/quant/foreign_codecs.h"

#include "hpcdl/quant/block_codec.h"

namespace hpcdl::quant {
namespace {

template <QuantFormat format> constexpr nn::Codec codec(std::string_view codes, std::string_view scale = "") {
  constexpr auto info = quant_format_info(format);
  return {.name = info.name,
          .bits = info.bits,
          .block = info.block,
          .names = {{{codes, ""}, {scale, ""}}},
          .gradients = true,
          .specs = BlockCodec<format>::specs,
          .multiply = BlockCodec<format>::multiply,
          .rows = BlockCodec<format>::rows};
}

}  // namespace

const nn::Codec q8_0_codec = codec<QuantFormat::q8_0>(".q8_0");
const nn::Codec q4_0_codec = codec<QuantFormat::q4_0>(".q4_0");
const nn::Codec q4_k_codec = codec<QuantFormat::q4_k>(".q4_k");
const nn::Codec q6_k_codec = codec<QuantFormat::q6_k>(".q6_k");
const nn::Codec fp8_blocks_codec = codec<QuantFormat::fp8_blocks>(".fp8_blocks", ".scale");

}  // namespace hpcdl::quant
