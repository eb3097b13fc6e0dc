#pragma once
// Codecs of matrices in GGUF files. Models of such a file hold them as they are; nothing here writes them.

#include "hpcdl/nn/codec.h"

namespace hpcdl::quant {

extern const nn::Codec q8_0_codec, q4_0_codec, q4_k_codec, q6_k_codec;

}  // namespace hpcdl::quant
