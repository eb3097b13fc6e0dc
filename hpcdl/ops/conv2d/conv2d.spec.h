#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/conv2d/conv2d.h"

namespace hpcdl::contract {

/// Images (N, S, S, I); a kernel pads them with zeros so that a stride of 1 keeps their size.
inline void conv2d_cases(auto& to) {
  const auto convolution = [&](const char* op, int size, int stride, std::vector<std::string> bias,
                               std::vector<Shape> shapes) {
    bias.insert(bias.begin(), {"x NSSI", fmt::format("w O{0}{0}I", size)});
    auto& family = to.add(op, "NxSxIxO", std::move(bias), std::move(shapes), [=](const auto& v) {
      return conv2d(v[0], v[1], v["bias"], {.stride = stride, .pad = size / 2});
    });
    if (size == 7)
      family.nearest_supported = [](Shape s) {
        s[2] = 3;  // colours: such kernels are those of first layers
        return s;
      };
  };
  // The layers of SimpleCNN at batch 128, and of ResNet-18 on 32 x 32 images at batch 32.
  const std::vector<Shape> narrowing{{32, 32, 64, 128}, {32, 16, 128, 256}, {32, 8, 256, 512}};
  convolution("conv2d+bias", 3, 1, {"bias O"}, {{128, 32, 3, 64}, {128, 16, 64, 128}, {128, 8, 128, 256}});
  convolution("conv2d", 3, 1, {}, {{32, 32, 64, 64}, {32, 16, 128, 128}, {32, 8, 256, 256}, {32, 4, 512, 512}});
  convolution("conv2d+stride2", 3, 2, {}, narrowing);
  convolution("conv2d+1x1", 1, 2, {}, narrowing);
  // Of ResNet-50 on 224 x 224 images, and its first layer.
  convolution("conv2d+pointwise", 1, 1, {}, {{8, 56, 64, 256}});
  convolution("conv2d+stem", 7, 2, {}, {{8, 224, 3, 64}});
}

}  // namespace hpcdl::contract
