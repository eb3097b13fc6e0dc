#pragma once
// Several adapters of one model, of which every text of a batch has its own or none (nn/adapter_set.h).

#include <cstdint>
#include <span>

#include "hpcdl/models/adapter_files.h"
#include "hpcdl/models/bind.h"
#include "hpcdl/models/decoder.h"

namespace hpcdl::models {

/// Gives the layers of a decoder these adapters, and returns their bytes. `files`: those of the model. Throws Error if an
/// adapter does not fit the model, or trains what all texts of a batch share.
std::int64_t attach_choices(Decoder& model, std::span<const AdapterFolder> adapters, const Binder& files);

}  // namespace hpcdl::models
