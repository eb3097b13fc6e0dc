#pragma once

#include "hpcdl/quant/compress_model.h"

namespace hpcdl::models {

/// quant::compress_model() for a Hugging Face folder of any family: the matrices of attention and MLPs, without routers,
/// experts, embeddings and the head. Throws Error for a folder that is quantised or compressed already.
quant::CompressReport compress_folder(Pool& pool, const io::fs::path& from, const io::fs::path& to,
                                      quant::CompressModelOptions options);

}  // namespace hpcdl::models
