#include "hpcdl/models/inference_type.h"

#include "hpcdl/nn/codec.h"

namespace hpcdl::models {

DType inference_type(const LanguageModel& model, Device device) {
  if (model.compute_type() != DType::none) return model.compute_type();
  if (!device.is_cuda()) return DType::f32;
  if (const auto* codec = model.codec()) return codec->activations_on_gpu;
  const DType weights = model.matrix_type();
  return weights == DType::bf16 || weights == DType::f16 ? weights : DType::f32;
}

}  // namespace hpcdl::models
