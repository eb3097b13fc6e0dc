#pragma once
// Loss and accuracy of a classifier on images.

#include <functional>

#include "hpcdl/data/images/image_set.h"
#include "hpcdl/models/image_model.h"

namespace hpcdl::infer {

struct ImageScore {
  double loss = 0, accuracy = 0;  // mean over the images; share of correct answers
  std::int64_t samples = 0;
};

struct ImageEvalOptions {
  std::int64_t batch = 128;
  int workers = 2;
  DType compute = DType::f32;
};

/// Every image once, without random augmentation, with pixels normalised as in training. Throws Error if the set has
/// classes that the model does not know. `progress` receives the number of images done so far.
ImageScore evaluate_images(const models::ImageModel& model, Pool& pool, std::shared_ptr<const data::ImageSet> set,
                           const ImageEvalOptions& options, const std::function<void(std::int64_t)>& progress = {});

}  // namespace hpcdl::infer
