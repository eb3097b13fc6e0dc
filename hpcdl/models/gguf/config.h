#pragma once

#include "hpcdl/io/gguf/file.h"
#include "hpcdl/io/json.h"

namespace hpcdl::models {

/// The config.json that transformers would have for the model of a GGUF file: sizes from its metadata, and what follows from
/// its tensors (biases, tied head, divisors of rotary angles). Throws Error for an architecture that is not supported and for
/// metadata that say something our layers do not compute.
io::Json config_of_gguf(const io::GgufFile& file);

}  // namespace hpcdl::models
