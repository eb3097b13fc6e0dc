#pragma once
// ResNet-18 (He et al., "Deep residual learning", 2015), names and shapes as in torchvision: 11,689,512 parameters with
// 1000 classes and the imagenet stem, 11,173,962 with 10 classes and the cifar stem, which is a 3x3 convolution with
// stride 1 and no pool.

#include <optional>

#include "hpcdl/models/image_config.h"
#include "hpcdl/nn/batch_norm.h"
#include "hpcdl/nn/context.h"
#include "hpcdl/nn/conv2d.h"
#include "hpcdl/nn/linear.h"

namespace hpcdl::models {

/// The shortcut around a block that changes the shape.
struct Downsample {
  nn::Conv2d conv;
  nn::BatchNorm norm;
  void visit(auto&& f) { f("0", conv), f("1", norm); }
};

struct BasicBlock {
  nn::Conv2d conv1, conv2;
  nn::BatchNorm bn1, bn2;
  std::optional<Downsample> downsample;

  BasicBlock(std::int64_t in, std::int64_t out, int stride);
  Var operator()(const Var& x, const nn::ForwardOptions& o) const;
  void visit(auto&& f) {
    f("conv1", conv1), f("bn1", bn1), f("conv2", conv2), f("bn2", bn2);
    if (downsample) f("downsample", *downsample);
  }
};

struct ResNet {
  nn::Conv2d conv1;
  nn::BatchNorm bn1;
  bool pooled = false;  // after the stem
  std::vector<BasicBlock> layer1, layer2, layer3, layer4;
  nn::Linear fc;

  explicit ResNet(const ImageConfig& c);
  /// images: (N, H, W, 3); logits (N, classes).
  Var logits(const Var& images, const nn::ForwardOptions& o) const;
  void visit(auto&& f) {
    f("conv1", conv1), f("bn1", bn1), f("layer1", layer1), f("layer2", layer2), f("layer3", layer3),
        f("layer4", layer4), f("fc", fc);
  }

 private:
  Var stem(const Var& images, const nn::ForwardOptions& o) const;
};

}  // namespace hpcdl::models
