// Mixed precision in your own loop: autocast chooses types while the program is recorded, a GradScaler keeps f16
// gradients in range.

#include <fmt/format.h>

#include <cmath>

#include "hpcdl/graph/text.h"
#include "hpcdl/instance.h"
#include "hpcdl/ops/adamw/adamw.h"
#include "hpcdl/ops/cross_entropy/cross_entropy.h"
#include "hpcdl/ops/layer_norm/layer_norm.h"
#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/optim/grad_scaler.h"
#include "hpcdl/rng.h"

using namespace hpcdl;

constexpr std::int64_t kBatch = 256, kWidth = 64, kClasses = 2;

/// A parameter in f32 with its state: weights and moments are f32 for any policy.
struct Parameter {
  OwnedTensor value, gradient, m, v;
  Parameter(Shape shape, float mean, float std, std::uint64_t stream)
      : value({shape, DType::f32}), gradient(value.tensor.spec()), m(value.tensor.spec()), v(value.tensor.spec()) {
    for (std::int64_t i = 0; i < shape.size(); ++i) {
      value.tensor.ptr<float>()[i] =
          mean + std * static_cast<float>(Rng{1, stream}.normal(static_cast<std::uint64_t>(i)));
      m.tensor.ptr<float>()[i] = v.tensor.ptr<float>()[i] = 0;
    }
  }
};

int main() {
  Pool pool;
  StepParams params;
  Stream stream(pool, &params);
  Parameter w1({kWidth, 3}, 0, 0.5f, 1), gamma({kWidth}, 1, 0, 2), beta({kWidth}, 0, 0, 3),
      w2({kClasses, kWidth}, 0, 0.1f, 4);
  Parameter* const all[] = {&w1, &gamma, &beta, &w2};

  // The model does not mention types.
  const auto model = [&](Graph& g, const Var& x, const Var& labels) {
    const auto parameter = [&](const char* name, const Parameter& p) {
      return g.parameter(name, p.value.tensor, p.gradient.tensor);
    };
    const Var hidden = layer_norm(linear(x, parameter("w1", w1), {}, {.activation = Activation::gelu_tanh}),
                                  parameter("gamma", gamma), parameter("beta", beta));
    return cross_entropy(linear(hidden, parameter("w2", w2)), labels)[0];
  };

  GradScaler scaler({.growth_interval = 50,
                     .terms = kBatch});  // 2^16 of the mean loss; users of long runs keep the default of 2000 steps
  Graph g;
  const Var x = g.input("x", {{kBatch, 3}, DType::f32}), labels = g.input("labels", {{kBatch}, DType::i32});
  Var loss;
  {
    const Graph::Autocast mixed(g, AutocastPolicy{.product = DType::f16});
    loss = g.keep(model(g, x, labels));
  }
  scaler.backward(g, loss);
  const Instance pass(g.finish());
  fmt::print("{}\n", program_text(pass.program(), pass.plan()));

  Graph o;
  std::vector<Var> gradients;
  std::vector<AdamWTensor<Var>> update;
  for (const auto* p : all) {
    const auto name = [&](const char* what) { return fmt::format("{}.{}", update.size(), what); };
    gradients.push_back(o.constant(name("gradient"), p->gradient.tensor));
    update.push_back({.value = o.constant(name("value"), p->value.tensor),
                      .gradient = gradients.back(),
                      .m = o.constant(name("m"), p->m.tensor),
                      .v = o.constant(name("v"), p->v.tensor)});
  }
  scaler.step(o, gradients, {.max_norm = 1}, [&] { record_adamw(o, update, {}); });
  const Instance step(o.finish());

  // Two rings of points, one around the other.
  double mean = 0;
  for (std::int64_t number = 0; number < 200; ++number) {
    auto* point = pass.tensor(x).ptr<float>();
    for (std::int64_t i = 0; i < kBatch; ++i, point += 3) {
      const auto draw = Rng{2, 1}.block(static_cast<std::uint64_t>(number * kBatch + i));
      const float angle = static_cast<float>(draw[0]) * 0x1p-32f * 6.2831853f, radius = i % 2 ? 2.0f : 1.0f;
      point[0] = radius * std::cos(angle), point[1] = radius * std::sin(angle), point[2] = 1;
      pass.tensor(labels).ptr<std::int32_t>()[i] = static_cast<std::int32_t>(i % 2);
    }
    pass.run(stream);
    params = {.step = number, .lr = 1e-2f, .grad_scale = 1.0f / kBatch};
    step.run(stream);
    mean = static_cast<double>(*pass.tensor(loss).ptr<float>()) / kBatch;
    if (const auto now = scaler.state(stream); number % 40 == 0 || number == 199)
      fmt::print("step {:3}  loss {:.4f}  scale 2^{:.0f}, {} steps skipped\n", number, mean, std::log2(now.scale),
                 now.counts.skipped);
  }
  return mean < 0.1 ? 0 : 1;
}
