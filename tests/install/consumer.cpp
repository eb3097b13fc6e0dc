// A program that knows only the installed headers: an op on tensors, an op of its own in a program, a small model that
// is trained and then continues a sequence, a collective. Every public header is included, so that all of them compile.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string_view>
#include <vector>

#include "hpcdl/autocast.h"
#include "hpcdl/box.h"
#include "hpcdl/buffer.h"
#include "hpcdl/comm.h"
#include "hpcdl/data.h"
#include "hpcdl/device.h"
#include "hpcdl/dtype.h"
#include "hpcdl/error.h"
#include "hpcdl/generate.h"
#include "hpcdl/graph.h"
#include "hpcdl/group.h"
#include "hpcdl/instance.h"
#include "hpcdl/kernel_abi.h"
#include "hpcdl/model.h"
#include "hpcdl/op.h"
#include "hpcdl/op_info.h"
#include "hpcdl/ops.h"
#include "hpcdl/pool.h"
#include "hpcdl/program.h"
#include "hpcdl/rng.h"
#include "hpcdl/shape.h"
#include "hpcdl/stream.h"
#include "hpcdl/tensor.h"
#include "hpcdl/ticket.h"
#include "hpcdl/train.h"

using namespace hpcdl;

namespace {

int failures = 0;

void expect(bool ok, const char* what) {
  std::printf("%s: %s\n", what, ok ? "yes" : "NO");
  failures += !ok;
}

/// y = 2x.
struct Twice {
  static constexpr std::string_view name = "consumer_twice";
  struct Args {};
  static Spec infer(const Spec& x, const Args&) { return x; }
  static Cost cost(const Spec& x, const Args&) { return {.operations = static_cast<double>(x.size())}; }
  static void forward(Stream&, Tensor y, View x, const Args&) {
    for (std::int64_t i = 0; i < x.size(); ++i) y.ptr<float>()[i] = 2 * x.ptr<float>()[i];
  }
  static void backward(Stream&, Grad dx, View dy, const Args&) {
    for (std::int64_t i = 0; i < dy.size(); ++i)
      dx.ptr<float>()[i] = (dx.accumulate() ? dx.ptr<float>()[i] : 0) + 2 * dy.ptr<float>()[i];
  }
  using Backward = Operands<dIn<0>, dOut<0>>;
};

void op_on_tensors(Stream& stream) {
  OwnedTensor x({{2, 8}, DType::f32}), y({{2, 8}, DType::f32});
  for (int i = 0; i < 16; ++i) x.tensor.ptr<float>()[i] = static_cast<float>(i);
  softmax(stream, y.tensor, x.tensor);
  float sum = 0;
  for (int i = 0; i < 8; ++i) sum += y.tensor.ptr<float>()[i];
  expect(std::fabs(sum - 1) < 1e-5f, "a row of softmax sums to 1");
  bool refused = false;
  try {
    softmax(stream, OwnedTensor({{2, 9}, DType::f32}).tensor, x.tensor);
  } catch (const Error&) {
    refused = true;
  }
  expect(refused, "an output of another shape is refused");
}

void recorded(Stream& stream) {
  OwnedTensor w({{1, 4}, DType::f32}), dw({{1, 4}, DType::f32}), labels({{1}, DType::i32});
  Graph g;
  const Var p = g.parameter("w", w.tensor, dw.tensor);
  const Var loss = g.keep(cross_entropy_loss(record<Twice>({}, p), g.constant("labels", labels.tensor)));
  g.backward(loss);
  const Instance step(g.finish());
  step.run(stream);
  expect(std::fabs(step.tensor(loss).ptr<float>()[0] - std::log(4.0f)) < 1e-5f, "the loss of equal logits is log 4");
  expect(std::fabs(dw.tensor.ptr<float>()[1] - 0.5f) < 1e-5f, "an op of this program has its gradient");
}

void trained(Pool& pool) {
  constexpr std::int64_t kBatch = 4, kLength = 16, kVocab = 16;
  Model model = Model::create({.layers = 1, .heads = 2, .width = 32, .context = 32, .vocab = kVocab}, 1);
  Trainer trainer(model, pool, {.batch = kBatch, .length = kLength});
  std::vector<std::int32_t> tokens(kBatch * kLength), targets(kBatch * kLength);
  double first = 0, last = 0;
  for (int i = 0; i < 120; ++i) {
    for (std::size_t k = 0; k < tokens.size(); ++k) {
      const auto start = static_cast<std::size_t>(i) * 5 + k / kLength * 3;
      tokens[k] = static_cast<std::int32_t>((start + k) % kVocab);
      targets[k] = static_cast<std::int32_t>((start + k + 1) % kVocab);
    }
    last = trainer.step(tokens, targets, 1e-2).loss;
    if (i == 0) first = last;
  }
  std::printf("loss %.3f, then %.3f\n", first, last);
  expect(last < 0.3 * first, "training lowers the loss");
  const auto ids = Generator(model, pool).generate(std::vector<std::int32_t>{3, 4, 5}, 4);
  expect(ids == std::vector<std::int32_t>{6, 7, 8, 9}, "the model counts on");
}

void collective() {
  comm::run_ranks(3, [](const comm::Group& world) {
    Pool pool(1);
    const Stream stream(pool);
    OwnedTensor x({{4}, DType::f32});
    for (int i = 0; i < 4; ++i) x.tensor.ptr<float>()[i] = static_cast<float>(world.rank() + i);
    world.all_reduce(stream, x.tensor).wait();
    if (world.rank() == 0) expect(x.tensor.ptr<float>()[1] == 6, "an all-reduce sums over three ranks");
  });
}

}  // namespace

int main() {
  Pool pool(2);
  StepParams params;
  Stream stream(pool, &params);
  op_on_tensors(stream);
  recorded(stream);
  trained(pool);
  collective();
  return failures;
}
