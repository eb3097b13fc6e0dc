#pragma once
// Several adapters of one model, of which every text of a batch has its own or none (nn/adapter_set.h).

#include <memory>
#include <span>
#include <vector>

#include "hpcdl/models/adapter_files.h"
#include "hpcdl/models/bind.h"
#include "hpcdl/models/decoder.h"
#include "hpcdl/nn/adapter_set.h"

namespace hpcdl::models {

/// Gives the layers of a decoder these adapters, with matrices of type `matrices`, and returns those of each layer.
/// `files`: those of the model. Throws Error if an adapter does not fit the model, or trains what all texts of a batch
/// share.
std::vector<std::shared_ptr<nn::AdapterSet>> attach_choices(Decoder& model, std::span<const AdapterFolder> adapters,
                                                            const Binder& files, DType matrices);

}  // namespace hpcdl::models
