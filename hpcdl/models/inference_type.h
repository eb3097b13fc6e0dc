#pragma once

#include "hpcdl/models/language_model.h"

namespace hpcdl::models {

/// The type of activations of inference on a device: the one that the model was opened in, if any; else F32 on a CPU, and
/// on a GPU that of its matrices, because no tensor core multiplies F32 by 16 bits.
DType inference_type(const LanguageModel& model, Device device);

}  // namespace hpcdl::models
