#include "hpcdl/models/simple_cnn.h"

#include <string>

#include "hpcdl/ops/dropout/dropout.h"
#include "hpcdl/ops/max_pool2d/max_pool2d.h"

namespace hpcdl::models {
namespace {

void uniform(nn::Param& weight, nn::Param& bias, std::int64_t fan_in) {
  for (auto* p : {&weight, &bias}) p->init = nn::Init::uniform, p->std = 1 / std::sqrt(static_cast<float>(fan_in));
}

nn::Conv2d conv3x3(std::int64_t in, std::int64_t out) {
  nn::Conv2d c(in, out, 3, true, {.stride = 1, .pad = 1});
  uniform(c.weight, c.bias, c.fan_in());
  return c;
}

}  // namespace

void init_as_torch(nn::Linear& l) { uniform(l.weight, l.bias, l.in()); }

SimpleCnn::SimpleCnn(const ImageConfig& c)
    : conv1(conv3x3(3, c.width)),
      conv2(conv3x3(c.width, 2 * c.width)),
      conv3(conv3x3(2 * c.width, 4 * c.width)),
      bn1(c.width),
      bn2(2 * c.width),
      bn3(4 * c.width) {
  const std::int64_t last = c.size / 8, channels = 4 * c.width, hidden = 8 * c.width;
  fc1 = nn::Linear(last * last * channels, hidden, true, 0);
  fc1.weight.channels_last = {hidden, last, last, channels};
  fc2 = nn::Linear(hidden, c.classes, true, 0);
  init_as_torch(fc1), init_as_torch(fc2);
}

Var SimpleCnn::logits(const Var& images, const nn::ForwardOptions& o) const {
  Graph& g = images.graph();
  Var x = images;
  int number = 1;
  for (const auto& [conv, norm] : {std::pair(&conv1, &bn1), {&conv2, &bn2}, {&conv3, &bn3}}) {
    Graph::Scope scope(g, "conv" + std::to_string(number++));
    const auto block = [&, &layer = *conv, &bn = *norm] {
      return max_pool2d(bn(layer(x), o, true), {.kernel = 2, .stride = 2});
    };
    x = o.recompute ? g.checkpoint(block) : block();
  }
  Graph::Scope scope(g, "head");
  const Var flat = g.reshape(x, {x[0], x[1] * x[2] * x[3]});
  return fc2(dropout(fc1(flat, Activation::relu), o.dropout, o.part));
}

}  // namespace hpcdl::models
