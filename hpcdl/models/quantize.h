#pragma once
// Language models in 4 bits.

#include "hpcdl/quant/quantize_model.h"

namespace hpcdl::models {

/// quant::quantize_model() for a Hugging Face folder of any family. Matrices of at least 16 x 32 are quantised, except
/// position embeddings; a tied head and tensors that are not parameters are omitted. Throws Error for a folder that is
/// already quantised.
quant::ModelReport quantize_folder(Pool& pool, const io::fs::path& from, const io::fs::path& to,
                                   quant::QuantizeModelOptions options = {});

}  // namespace hpcdl::models
