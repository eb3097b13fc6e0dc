// An op of your own, and a program made of ops: recorded once, planned, replayed.

#include <fmt/format.h>

#include "hpcdl/graph.h"
#include "hpcdl/graph/text.h"
#include "hpcdl/instance.h"
#include "hpcdl/ops/softmax/softmax.h"

using namespace hpcdl;

/// y = sum of (a - b)^2, one f32. The gradient rule is next to the function that it belongs to.
struct SquaredError {
  static constexpr std::string_view name = "squared_error";
  struct Args {};
  static Spec infer(const Spec&, const Spec&, const Args&) { return {{1}, DType::f32}; }
  static Cost cost(const Spec& a, const Spec&, const Args&) {
    return {.operations = 3.0 * static_cast<double>(a.size())};
  }
  static void forward(Stream&, Tensor y, View a, View b, const Args&) {
    double sum = 0;
    for (std::int64_t i = 0; i < a.size(); ++i) {
      const double d = a.ptr<float>()[i] - b.ptr<float>()[i];
      sum += d * d;
    }
    *y.ptr<float>() = static_cast<float>(sum);
  }
  static void backward(Stream&, Grad da, View a, View b, View dy, const Args&) {
    for (std::int64_t i = 0; i < a.size(); ++i) {
      const float g = 2 * (a.ptr<float>()[i] - b.ptr<float>()[i]) * *dy.ptr<float>();
      da.ptr<float>()[i] = da.accumulate() ? da.ptr<float>()[i] + g : g;
    }
  }
  using Backward = Operands<dIn<0>, In<0>, In<1>, dOut<0>>;
};

int main() {
  Pool pool;
  StepParams params;
  Stream stream(pool, &params);

  // Parameters lie in our memory; all other tensors lie in an arena that the planner lays out.
  OwnedTensor w({{1, 8}, DType::f32}), dw({{1, 8}, DType::f32}), target({{1, 8}, DType::f32});
  for (int i = 0; i < 8; ++i) target.tensor.ptr<float>()[i] = static_cast<float>(i + 1) / 36;

  Graph g;
  const Var p = g.parameter("w", w.tensor, dw.tensor);
  const Var loss = g.keep(record<SquaredError>({}, softmax(p), g.constant("target", target.tensor)));
  g.backward(loss);
  const Instance step(g.finish());
  fmt::print("{}\n", program_text(step.program(), step.plan()));

  for (int i = 0; i <= 2000; ++i) {
    step.run(stream);
    for (int k = 0; k < 8; ++k) w.tensor.ptr<float>()[k] -= 5 * dw.tensor.ptr<float>()[k];
    if (i % 500 == 0) fmt::print("step {:4}  loss {:.3e}\n", i, *step.tensor(loss).ptr<float>());
  }
}
