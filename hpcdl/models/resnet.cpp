#include "hpcdl/models/resnet.h"

#include "hpcdl/models/simple_cnn.h"
#include "hpcdl/ops/adaptive_avg_pool2d/adaptive_avg_pool2d.h"
#include "hpcdl/ops/max_pool2d/max_pool2d.h"

namespace hpcdl::models {
namespace {

/// Without bias; normal with variance 2 / fan out, as initialised in torchvision.
nn::Conv2d conv(std::int64_t in, std::int64_t out, int kernel, int stride) {
  nn::Conv2d c(in, out, kernel, false, {.stride = stride, .pad = kernel / 2});
  c.weight.init = nn::Init::normal;
  c.weight.std = std::sqrt(2 / static_cast<float>(c.fan_out()));
  return c;
}

}  // namespace

BasicBlock::BasicBlock(std::int64_t in, std::int64_t out, int stride)
    : conv1(conv(in, out, 3, stride)), conv2(conv(out, out, 3, 1)), bn1(out), bn2(out) {
  if (stride != 1 || in != out) downsample = Downsample{conv(in, out, 1, stride), nn::BatchNorm(out)};
}

Var BasicBlock::operator()(const Var& x, const nn::ForwardOptions& o) const {
  const Var around = downsample ? downsample->norm(downsample->conv(x), o, false) : x;
  const Var y = bn1(conv1(x), o, true);
  return bn2(conv2(y), o, true, around);
}

ResNet::ResNet(const ImageConfig& c) : bn1(c.width), pooled(c.stem == Stem::imagenet) {
  conv1 = c.stem == Stem::imagenet ? conv(3, c.width, 7, 2) : conv(3, c.width, 3, 1);
  std::int64_t in = c.width;
  for (auto* layer : {&layer1, &layer2, &layer3, &layer4}) {
    const std::int64_t out = layer == &layer1 ? in : 2 * in;
    layer->emplace_back(in, out, layer == &layer1 ? 1 : 2);
    layer->emplace_back(out, out, 1);
    in = out;
  }
  fc = nn::Linear(in, c.classes, true, 0);
  init_as_torch(fc);
}

Var ResNet::stem(const Var& images, const nn::ForwardOptions& o) const {
  Graph::Scope scope(images.graph(), "stem");
  const Var x = bn1(conv1(images), o, true);
  return pooled ? max_pool2d(x, {.kernel = 3, .stride = 2, .pad = 1}) : x;
}

Var ResNet::logits(const Var& images, const nn::ForwardOptions& o) const {
  Graph& g = images.graph();
  Var x = stem(images, o);
  int number = 1;
  for (const auto* layer : {&layer1, &layer2, &layer3, &layer4}) {
    for (std::size_t i = 0; i < layer->size(); ++i) {
      Graph::Scope scope(g, "layer" + std::to_string(number) + "." + std::to_string(i));
      const auto block = [&] { return (*layer)[i](x, o); };
      x = o.recompute ? g.checkpoint(block) : block();
    }
    ++number;
  }
  Graph::Scope scope(g, "head");
  x = adaptive_avg_pool2d(x, {.height = 1, .width = 1});
  return fc(g.reshape(x, {x[0], x[3]}));
}

}  // namespace hpcdl::models
