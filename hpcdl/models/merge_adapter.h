#pragma once

#include "hpcdl/io/file.h"
#include "hpcdl/models/adapter_files.h"
#include "hpcdl/pool.h"

namespace hpcdl::models {

/// Writes into the folder `to`, which exists, the weights and the config.json of the model in `from` with the adapter
/// added: W + scale * b a in f32, rounded once to `dtype`, or to the type of the file if that is none. Holds one matrix
/// at a time. Throws Error if the adapter belongs to another model, or if the model is quantised.
void merge_adapter(Pool& pool, const io::fs::path& from, const AdapterFolder& adapter, const io::fs::path& to,
                   DType dtype = DType::none);

}  // namespace hpcdl::models
