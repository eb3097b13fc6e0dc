#pragma once
// A small classifier of 32 x 32 images: three blocks of a 3x3 convolution, batch norm, ReLU and 2x2 max pool, then two
// linear layers. 2,474,506 parameters at width 64 and 10 classes.

#include "hpcdl/models/image_config.h"
#include "hpcdl/nn/batch_norm.h"
#include "hpcdl/nn/context.h"
#include "hpcdl/nn/conv2d.h"
#include "hpcdl/nn/linear.h"

namespace hpcdl::models {

struct SimpleCnn {
  nn::Conv2d conv1, conv2, conv3;  // width, 2 width, 4 width
  nn::BatchNorm bn1, bn2, bn3;
  nn::Linear fc1, fc2;  // (size / 8)^2 * 4 width -> 8 width -> classes

  explicit SimpleCnn(const ImageConfig& c);
  /// images: (N, H, W, 3); logits (N, classes).
  Var logits(const Var& images, const nn::ForwardOptions& o) const;
  void visit(auto&& f) {
    f("conv1", conv1), f("bn1", bn1), f("conv2", conv2), f("bn2", bn2), f("conv3", conv3), f("bn3", bn3);
    f("fc1", fc1), f("fc2", fc2);
  }
};

/// Initialises as torch does: uniform in +-1/sqrt(fan in), including the bias.
void init_as_torch(nn::Linear& l);

}  // namespace hpcdl::models
