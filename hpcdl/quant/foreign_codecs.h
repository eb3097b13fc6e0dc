#pragma once
// Codecs of matrices in GGUF files and in folders of other programs. Models of such a file hold them as they are; nothing here
// writes them.

#include "hpcdl/nn/codec.h"

namespace hpcdl::quant {

extern const nn::Codec q8_0_codec, q4_0_codec, q4_k_codec, q6_k_codec, fp8_blocks_codec;

}  // namespace hpcdl::quant
