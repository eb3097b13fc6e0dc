// Every convolution of SimpleCNN (batch 128) and of ResNet-18 on 32 x 32 images (batch 32): forward, dx and dw
// separately. Prints "ready", then for every line of standard input the milliseconds of each; bench/peers/conv2d.py
// lets PyTorch take turns with it.
//   conv2d_layers [bf16]

#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/ops/conv2d/conv2d.h"
#include "hpcdl/rng.h"

namespace {

using namespace hpcdl;

struct Layer {
  const char* name;
  std::int64_t batch, size, in, out, kernel;
  int stride;
};

// The same as in bench/peers/conv2d.py.
const Layer kLayers[] = {
    {"SimpleCNN 1", 128, 32, 3, 64, 3, 1},
    {"SimpleCNN 2", 128, 16, 64, 128, 3, 1},
    {"SimpleCNN 3", 128, 8, 128, 256, 3, 1},
    {"ResNet stem", 32, 32, 3, 64, 3, 1},
    {"ResNet 64", 32, 32, 64, 64, 3, 1},
    {"ResNet 64-128 /2", 32, 32, 64, 128, 3, 2},
    {"ResNet 128", 32, 16, 128, 128, 3, 1},
    {"ResNet 128-256 /2", 32, 16, 128, 256, 3, 2},
    {"ResNet 256", 32, 8, 256, 256, 3, 1},
    {"ResNet 256-512 /2", 32, 8, 256, 512, 3, 2},
    {"ResNet 512", 32, 4, 512, 512, 3, 1},
    {"ResNet 1x1 64-128 /2", 32, 32, 64, 128, 1, 2},
    {"ResNet 1x1 128-256 /2", 32, 16, 128, 256, 1, 2},
    {"ResNet 1x1 256-512 /2", 32, 8, 256, 512, 1, 2},
};

class Run {
 public:
  Run(const Layer& l, DType d) : name(l.name), args_{.stride = l.stride, .pad = static_cast<int>(l.kernel / 2)} {
    const Spec x{{l.batch, l.size, l.size, l.in}, d}, w{{l.out, l.kernel, l.kernel, l.in}, d};
    x_ = random(x, 1), w_ = random(w, 2), y_ = random(Conv2d::infer(x, w, {}, args_), 3);
    dx_ = OwnedTensor(x), dw_ = OwnedTensor(w);
    flops = Conv2d::shape(x, w, args_).flops();
  }
  void forward(Stream& s) { Conv2d::forward(s, y_.tensor, x_.tensor, w_.tensor, {}, args_); }
  void dx(Stream& s) {
    Conv2d::backward(s, {dx_.tensor, Write::overwrite}, {}, {}, x_.tensor, w_.tensor, y_.tensor, args_);
  }
  void dw(Stream& s) {
    Conv2d::backward(s, {}, {dw_.tensor, Write::overwrite}, {}, x_.tensor, w_.tensor, y_.tensor, args_);
  }

  std::string name;
  double flops = 0;

 private:
  static OwnedTensor random(const Spec& spec, std::uint64_t seed) {
    OwnedTensor t(spec);
    for (std::int64_t i = 0; i < spec.size(); ++i) {
      const float v = static_cast<float>(Rng{seed, 0}.uniform(static_cast<std::uint64_t>(i))) - 0.5f;
      if (spec.dtype == DType::bf16) t.tensor.ptr<bf16>()[i] = bf16(v);
      else t.tensor.ptr<float>()[i] = v;
    }
    return t;
  }
  Conv2d::Args args_;
  OwnedTensor x_, w_, y_, dx_, dw_;
};

/// Milliseconds of the faster of two calls after one that is not measured.
template <class F> double milliseconds(F&& f) {
  double best = 1e9;
  for (int i = 0; i < 3; ++i) {
    const auto start = std::chrono::steady_clock::now();
    f();
    const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    if (i > 0 && ms < best) best = ms;
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const DType dtype = argc > 1 && std::strcmp(argv[1], "bf16") == 0 ? DType::bf16 : DType::f32;
  Pool pool;
  Stream s(pool);
  std::vector<Run> runs;
  for (const Layer& l : kLayers) runs.emplace_back(l, dtype);
  std::puts("ready");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    nlohmann::ordered_json all;
    for (Run& r : runs)
      all[r.name] = {{"flops", r.flops},
                     {"forward", milliseconds([&] { r.forward(s); })},
                     {"dx", milliseconds([&] { r.dx(s); })},
                     {"dw", milliseconds([&] { r.dw(s); })}};
    std::printf("%s\n", all.dump().c_str());
    std::fflush(stdout);
  }
}
